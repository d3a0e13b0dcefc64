"""The stack: the Python, and the packages that a zygote imports ahead, with their locations on the host.

Only the distributions of the stack are bind-mounted into a jail, one by one: not the server's dependencies, not
editable installs, nothing else in the same site-packages.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from antwort.sandbox.errors import CannotStart

SCIENTIFIC: Final = ("numpy", "pandas", "matplotlib", "matplotlib.pyplot", "resiliparse.extract.html2text", "pypdf")
"""Numbers, tables and charts for the code of models, and the text extraction of the web search."""
BARE: Final = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """A Python, the modules imported ahead, and the files they need."""

    modules: tuple[str, ...]
    executable: Path
    prefix: Path
    entries: tuple[Path, ...]
    """Top-level files and directories of the distributions in the stack."""

    @property
    def home(self) -> str:
        """The prefix of this Python inside a jail: unchanged if it is below /usr, else a neutral path."""
        return str(self.prefix) if self.prefix.is_relative_to("/usr") else "/opt/python"

    @property
    def environment(self) -> dict[str, str]:
        """Lets the relocated Python find its own shared library, not that of another Python of a similar version."""
        shared = bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))
        return {"LD_LIBRARY_PATH": f"{self.home}/lib"} if shared and self.home == "/opt/python" else {}

    def search_path(self, prefix: str, directories: str) -> str:
        """`PATH` with the directory of this Python before the others, where its prefix is at this path."""
        directory = self.executable.parent
        is_below = directory.is_relative_to(self.prefix)  # a jail needs that; without one, it can be a wrapper
        own = str(Path(prefix, directory.relative_to(self.prefix)) if is_below else directory)
        return directories if own in directories.split(":") else f"{own}:{directories}"


def current_stack(modules: tuple[str, ...] = SCIENTIFIC) -> Stack:
    """The stack of these modules as installed for the running interpreter."""
    names = tuple(dict.fromkeys(module.partition(".")[0] for module in modules))
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if absent:
        raise CannotStart(
            f"the stack needs {', '.join(absent)}; pip install 'weakincentives[sandbox]', or choose another stack"
        )
    entries = _entries(_closure(names))
    return Stack(modules, Path(os.path.realpath(sys.executable)), Path(sys.base_prefix).resolve(), entries)


@functools.cache
def _distributions() -> dict[str, importlib.metadata.Distribution]:
    return {canonicalize_name(d.name): d for d in importlib.metadata.distributions()}


def _closure(modules: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """The distributions of these modules and their dependencies, transitively."""
    providers = importlib.metadata.packages_distributions()
    waiting = [canonicalize_name(name) for module in modules for name in providers.get(module, [])]
    found: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        name = waiting.pop()
        distribution = _distributions().get(name)
        if name in found or distribution is None:
            continue
        found[name] = distribution
        waiting += [canonicalize_name(r) for r in map(_required, distribution.requires or ()) if r is not None]
    return list(found.values())


def _required(line: str) -> str | None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    return requirement.name


def _entries(distributions: list[importlib.metadata.Distribution]) -> tuple[Path, ...]:
    entries: set[Path] = set()
    for distribution in distributions:
        tops = {file.parts[0] for file in distribution.files or () if file.parts and file.parts[0] not in {"..", "/"}}
        entries |= {Path(str(distribution.locate_file(top))).resolve() for top in tops if top != "__pycache__"}
    return tuple(sorted(path for path in entries if path.exists()))
