"""Runner: executes the user's code in one interpreter and one namespace, and shell commands, one call at a time.

It is in the same process as hostile code, so nothing here is a protection; the kernel's layers are. Its duties:
variables persist between calls, the last expression is the result, tracebacks show only the user's frames, figures
become images, and each reply carries the token of its call, which code that only writes to the channel does not know.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import ctypes
import fcntl
import importlib
import inspect
import io
import linecache
import os
import signal
import socket
import struct
import sys
import termios
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import commands, figures, wire

MAX_TEXT_CHARS: Final = 1 << 20
_DRAIN_SECONDS: Final = 0.005
_DESCRIPTORS_PER_COMMAND: Final = 2
_OWN_DIRECTORY: Final = str(Path(__file__).parent)


class Runner:
    """The loop: read a call, run it, reply."""

    def __init__(self, channel: socket.socket, session_packages_dir: str) -> None:
        self._channel = channel
        self._session_packages_dir = session_packages_dir
        self._decoder = wire.Decoder()
        self._pid = os.getpid()
        self._calls = 0
        self._executing = False
        self._commands = commands.CommandRunner()
        self._is_command = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._main
        sys.argv = [""]
        builtins.input = no_input
        self._figures = figures.FigureCollector()

    def serve(self) -> None:
        signal.signal(signal.SIGINT, self._on_sigint)
        descriptors: list[int] = []  # they come with the first bytes of the frame that they belong to
        while True:
            data, received, _, _ = socket.recv_fds(self._channel, 1 << 16, _DESCRIPTORS_PER_COMMAND)
            if not data:
                return
            descriptors += received
            for header, _ in self._decoder.feed(data):
                # Set again for each call: the code may have replaced the handler.
                signal.signal(signal.SIGINT, self._on_sigint)
                if "command" in header:
                    self._handle_command(header, descriptors)
                    descriptors = []
                else:
                    self._handle_call(header)

    def _handle_command(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self._is_command = True
        try:
            reply = self._commands.run(request["command"], descriptors)
        finally:
            self._is_command = False
        self._channel.sendall(wire.encode({"call": request["call"], **reply, "parts": []}))

    def _handle_call(self, request: dict[str, Any]) -> None:
        self._calls += 1
        reply, images = self._run(request["code"], echo=request["echo"], packages=request["packages"])
        _flush()
        if os.getpid() != self._pid:
            os._exit(0)  # a fork by the code: only the original process may reply
        texts = [(kind, text.encode(errors="backslashreplace")) for kind, text in reply.pop("texts").items()]
        parts = [*texts, *images]
        header = {"call": request["call"], **reply, "parts": [kind for kind, _ in parts]}
        self._channel.sendall(wire.encode(header, tuple(data for _, data in parts)))

    def _run(self, code: str, *, echo: bool, packages: str | None) -> tuple[dict[str, Any], list[figures.Image]]:
        reply: dict[str, Any] = {"status": "success", "exit_code": 0, "images_left_out": 0, "texts": {}}
        images: list[figures.Image] = []
        try:
            try:
                self._executing = True
                if packages is not None:
                    self._add_packages(packages)
                value = self._evaluate(code, f"<cell {self._calls}>", echo=echo)
                if value is not None:
                    self._main.__dict__["_"] = value
                    reply["texts"] = {"result": truncate(repr(value))}
                    self._figures.add_value(value)
                images, reply["images_left_out"] = self._figures.take()
            finally:
                self._executing = False
        except SystemExit as error:
            reply |= {"status": "exit", "exit_code": exit_code(error), "texts": {}}
            if not isinstance(error.code, int | None):
                _write_value_to_stderr(error.code)
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its result
            reply |= failure_reply(error)
            _write_stderr(clean_traceback(error))
            self._figures.discard()
        if reply["images_left_out"]:
            _write_stderr(figures.left_out_note(reply["images_left_out"]))
        return reply, images

    def _add_packages(self, packages: str) -> None:
        """Make a set of the session packages importable, here and in programs started later."""
        path = f"{self._session_packages_dir}/{packages}"
        if path not in sys.path:
            sys.path.append(path)
            os.environ["PYTHONPATH"] = ":".join(filter(None, (os.environ.get("PYTHONPATH"), path)))
            self._commands.add_python_path(path)
            importlib.invalidate_caches()

    def _evaluate(self, code: str, filename: str, *, echo: bool) -> object:
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: ast.Module = compile(code, filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if echo and _has_result(tree, code) else None
        if tree.body:
            self._execute(compile(tree, filename, "exec", flags, dont_inherit=True))
        if isinstance(last, ast.Expr):
            return self._execute(compile(ast.Expression(last.value), filename, "eval", flags, dont_inherit=True))
        return None

    def _execute(self, code: types.CodeType) -> object:
        value = eval(code, self._main.__dict__)  # noqa: S307 - running code is its purpose
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            raise

    def _on_sigint(self, *_: object) -> None:
        # An interrupt between two calls belongs to neither.
        if self._is_command:
            self._commands.stop()
        elif self._executing:
            raise KeyboardInterrupt


def _has_result(tree: ast.Module, code: str) -> bool:
    """The last statement is an expression without a trailing semicolon, as in a notebook."""
    return bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";")


def truncate(text: str) -> str:
    """The text, or its head and tail if it is too long."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def exit_code(error: SystemExit) -> int:
    """The exit code that a shell would see."""
    if error.code is None:
        return 0
    return int.__and__(error.code, 0xFF) if isinstance(error.code, int) else 1


def failure_reply(error: BaseException) -> dict[str, Any]:
    """The reply fields of an exception."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        message = "(the exception's __str__ failed)"
    texts = {"name": truncate(type(error).__name__), "message": truncate(message)}
    return {"status": status, "exit_code": 1, "texts": texts}


def clean_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on, without frames of the runner."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
        frames = frames.tb_next
    try:
        text = traceback.TracebackException(type(error), error, frames)
        shown: traceback.TracebackException | None = text
        while shown is not None:
            own = [frame for frame in shown.stack if frame.filename.startswith(_OWN_DIRECTORY)]
            for frame in own:
                shown.stack.remove(frame)
            shown = shown.__cause__ or shown.__context__
        return "".join(text.format())
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        return f"{type(error).__name__}\n"


def no_input(prompt: object = "", /) -> str:
    """Replacement for `input()`: raises at once, since there is no standard input."""
    message = f"input({str(prompt)!r}) is not available: there is no standard input. Put the value into the code."
    raise EOFError(message)


class OrderedFile(io.FileIO):
    """Standard output or standard error, written in order relative to the other.

    They are two pipes, and a reader that finds data in both cannot know which came first. So when writing switches
    from one to the other, wait (a few milliseconds at most) until the reader has emptied the first.
    """

    last: OrderedFile | None = None

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer, as in the base class
        before = OrderedFile.last
        if before is not self:
            if before is not None:
                before.wait_until_read()
            OrderedFile.last = self
        return super().write(data)

    def wait_until_read(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        try:
            while _unread_bytes(self.fileno()) and time.monotonic() < deadline:
                time.sleep(0.00005)
        except (OSError, ValueError):
            return  # closed or replaced by the code: the order is not kept


def _unread_bytes(descriptor: int) -> int:
    unread = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", unread)[0])


def open_streams() -> None:
    """New text streams on descriptors 0, 1 and 2; line-buffered, so a kill loses no printed line."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process exits
    sys.stdout = _open_text(1)
    sys.stderr = _open_text(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _open_text(descriptor: int) -> io.TextIOWrapper:
    raw = OrderedFile(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    _ignore_errors(lambda: sys.stdout.flush())  # noqa: PLW0108 - looked up when called: the code may have replaced it
    _ignore_errors(lambda: sys.stderr.flush())  # noqa: PLW0108 - the same reason
    _ignore_errors(lambda: ctypes.CDLL(None).fflush(None))


def _write_stderr(text: str) -> None:
    _ignore_errors(lambda: sys.stdout.flush())  # noqa: PLW0108 - looked up when called: the code may have replaced it
    _ignore_errors(lambda: sys.stderr.write(text))


def _write_value_to_stderr(value: object) -> None:
    _ignore_errors(lambda: _write_stderr(f"{value}\n"))


def _ignore_errors(action: Callable[[], object]) -> None:
    """The code may have closed or replaced the streams; the reply must be sent anyway."""
    with contextlib.suppress(Exception):  # sys.stdout may be any object
        action()
