"""Runs the user's code: one interpreter, one namespace, one call after the other.

It lives in the same process as hostile code, so nothing here is a wall; the walls are the kernel's. What it must get
right is manners: variables live on, the last expression is echoed, tracebacks show only the user's frames, figures
become images, and each answer carries the token of the question, which code that merely writes to the channel has
not seen.
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

from . import figures, wire

LARGEST_ECHO: Final = 1 << 20
_DRAIN_SECONDS: Final = 0.005
_OURS: Final = str(Path(__file__).parent)


class Runner:
    """The loop: read a question, run it, answer."""

    def __init__(self, channel: socket.socket, annex: str) -> None:
        self._channel = channel
        self._annex = annex
        self._frames = wire.Decoder()
        self._pid = os.getpid()
        self._calls = 0
        self._executing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._main
        sys.argv = [""]
        builtins.input = no_input
        self._gallery = figures.FigureCollector()

    def serve(self) -> None:
        signal.signal(signal.SIGINT, self._interrupted)
        while data := self._channel.recv(1 << 16):
            for header, _ in self._frames.feed(data):
                # The handler is set anew each time: code may have replaced it.
                signal.signal(signal.SIGINT, self._interrupted)
                self._answer(header)

    def _answer(self, question: dict[str, Any]) -> None:
        self._calls += 1
        answer, images = self._run(question["code"], echo=question["echo"], packages=question["packages"])
        _flush()
        if os.getpid() != self._pid:
            os._exit(0)  # the code forked and this is the copy: only the original may answer
        texts = [(kind, text.encode(errors="backslashreplace")) for kind, text in answer.pop("texts").items()]
        parts = [*texts, *images]
        header = {"call": question["call"], **answer, "parts": [kind for kind, _ in parts]}
        self._channel.sendall(wire.encode(header, tuple(data for _, data in parts)))

    def _run(self, code: str, *, echo: bool, packages: str | None) -> tuple[dict[str, Any], list[figures.Image]]:
        answer: dict[str, Any] = {"status": "success", "exit_code": 0, "images_left_out": 0, "texts": {}}
        images: list[figures.Image] = []
        try:
            try:
                self._executing = True
                if packages is not None:
                    self._show(packages)
                value = self._evaluate(code, f"<cell {self._calls}>", echo=echo)
                if value is not None:
                    self._main.__dict__["_"] = value
                    answer["texts"] = {"result": shorten(repr(value))}
                    self._gallery.add_value(value)
                images, answer["images_left_out"] = self._gallery.take()
            finally:
                self._executing = False
        except SystemExit as leaving:
            answer |= {"status": "exit", "exit_code": exit_code(leaving), "texts": {}}
            if not isinstance(leaving.code, int | None):
                _complain_of(leaving.code)
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its result
            answer |= failure(error)
            _complain(clean_traceback(error))
            self._gallery.discard()
        if answer["images_left_out"]:
            _complain(figures.note(answer["images_left_out"]))
        return answer, images

    def _show(self, packages: str) -> None:
        """Make a set that was put into the annex importable, here and in programs started from now on."""
        place = f"{self._annex}/{packages}"
        if place not in sys.path:
            sys.path.append(place)
            os.environ["PYTHONPATH"] = ":".join(filter(None, (os.environ.get("PYTHONPATH"), place)))
            importlib.invalidate_caches()

    def _evaluate(self, code: str, filename: str, *, echo: bool) -> object:
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: ast.Module = compile(code, filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if echo and _echoes(tree, code) else None
        if tree.body:
            self._execute(compile(tree, filename, "exec", flags, dont_inherit=True))
        if isinstance(last, ast.Expr):
            return self._execute(compile(ast.Expression(last.value), filename, "eval", flags, dont_inherit=True))
        return None

    def _execute(self, code: types.CodeType) -> object:
        value = eval(code, self._main.__dict__)  # noqa: S307 - running code is what this is for
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

    def _interrupted(self, *_: object) -> None:
        # An interrupt that arrives between two calls belongs to none of them.
        if self._executing:
            raise KeyboardInterrupt


def _echoes(tree: ast.Module, code: str) -> bool:
    """The last statement is an expression, and no semicolon silences it, as in a notebook."""
    return bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";")


def shorten(text: str) -> str:
    """The text, or its two ends if it is too long."""
    if len(text) <= LARGEST_ECHO:
        return text
    half = LARGEST_ECHO // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def exit_code(leaving: SystemExit) -> int:
    """The number that a shell would see."""
    if leaving.code is None:
        return 0
    return int.__and__(leaving.code, 0xFF) if isinstance(leaving.code, int) else 1


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as an answer."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        message = "(the exception's own text could not be had)"
    texts = {"name": shorten(type(error).__name__), "message": shorten(message)}
    return {"status": status, "exit_code": 1, "texts": texts}


def clean_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on, without ours in between; what ran it is nobody's concern."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
        frames = frames.tb_next
    try:
        text = traceback.TracebackException(type(error), error, frames)
        shown: traceback.TracebackException | None = text
        while shown is not None:
            ours = [frame for frame in shown.stack if frame.filename.startswith(_OURS)]
            for frame in ours:
                shown.stack.remove(frame)
            shown = shown.__cause__ or shown.__context__
        return "".join(text.format())
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        return f"{type(error).__name__}\n"


def no_input(prompt: object = "", /) -> str:
    """Stands in for `input()`: fail at once instead of waiting for a keyboard that is not there."""
    message = f"input({str(prompt)!r}) cannot be answered: no one is at the keyboard. Put the value into the code."
    raise EOFError(message)


class OrderedFile(io.FileIO):
    """Standard output or error, kept in order with the other.

    They are two pipes, and a reader that finds data in both cannot tell which came first. So whenever writing
    switches from one to the other, wait (a moment at most) until the reader has emptied the first.
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
            while _unread(self.fileno()) and time.monotonic() < deadline:
                time.sleep(0.00005)
        except (OSError, ValueError):
            return  # closed or replaced by the code: its order is its own affair


def _unread(descriptor: int) -> int:
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", answer)[0])


def open_streams() -> None:
    """Fresh text streams on descriptors 0, 1 and 2; lines leave at once, so a kill loses nothing that was printed."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = _text(1)
    sys.stderr = _text(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _text(descriptor: int) -> io.TextIOWrapper:
    raw = OrderedFile(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    _quietly(lambda: sys.stdout.flush())  # noqa: PLW0108 - looked up inside: it may be anything
    _quietly(lambda: sys.stderr.flush())  # noqa: PLW0108 - the same reason
    _quietly(lambda: ctypes.CDLL(None).fflush(None))


def _complain(text: str) -> None:
    _quietly(lambda: sys.stdout.flush())  # noqa: PLW0108 - looked up inside: it may be anything
    _quietly(lambda: sys.stderr.write(text))


def _complain_of(value: object) -> None:
    _quietly(lambda: _complain(f"{value}\n"))


def _quietly(action: Callable[[], object]) -> None:
    """The code may have closed or replaced the streams; that must not cost it the answer."""
    with contextlib.suppress(Exception):  # anything may stand in sys.stdout
        action()
