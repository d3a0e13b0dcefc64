"""Installations with some of the extras: which modules and commands must work in each, and a probe of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from antwort.cli import main

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).with_name("probe_installation.py")
NAME = "weakincentives"

Extras = tuple[str, ...]

COMBINATIONS: list[Extras] = [
    (),
    ("claude",),
    ("kubernetes",),
    ("mcp",),
    ("model",),
    ("objectstore",),
    ("openai",),
    ("postgres",),
    ("sandbox",),
    ("server",),
    ("testing",),
    ("server", "sandbox"),
    ("server", "sandbox", "model"),
]
"""Each extra alone, and the combinations of the documentation."""

REQUIRED_EXTRAS: dict[str, Extras] = {
    "antwort": (),
    "antwort.cli": ("server", "sandbox"),
    "antwort.config": ("server",),
    "antwort.conformance": ("server",),
    "antwort.conformance.cli": ("server", "sandbox"),
    "antwort.conformance.grammar": (),
    "antwort.config_document": ("server",),
    "antwort.containers": ("server",),
    "antwort.engine": ("server",),
    "antwort.http": ("server",),
    "antwort.http.cli": ("server", "sandbox"),
    "antwort.models": ("server",),
    "antwort.models.embedded": ("model",),
    "antwort.storage.objects": ("objectstore",),
    "antwort.storage.postgres": ("postgres",),
    "antwort.net.bodies": ("server", "sandbox"),
    "antwort.net.connections": ("server", "sandbox"),
    "antwort.net.disconnect": ("server", "sandbox"),
    "antwort.net.fetch": ("server",),
    "antwort.net.http_transport": ("server",),
    "antwort.net.tls": ("server",),
    "antwort.net.websocket": ("server",),
    "antwort.sandbox": ("sandbox",),
    "antwort.sealing": ("server",),
    "antwort.telemetry": ("server",),
    "antwort.storage": ("server",),
    "antwort.testing.blobs": ("testing",),
    "antwort.testing.sandbox_backend": ("testing",),
    "antwort.testing.search_engine": ("server",),
    "antwort.testing.store": ("testing",),
    "antwort.tools": ("server",),
    "antwort.tools.builtins.codeinterpreter.kubernetes": ("kubernetes",),
    **dict.fromkeys(
        [f"antwort.tools.mcp.client.{name}" for name in ("content", "jail", "listing", "pool", "session", "stdio")],
        ("mcp",),
    ),
    "weakincentives": (),
}
"""Packages and modules, and the extras of which any one is enough to import them. The longest prefix counts."""


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared_extras() -> set[str]:
    """All extras for users."""
    return set(_project()["optional-dependencies"]) - {"dev"}


def included_extras(extras: Iterable[str]) -> set[str]:
    """The extras, and those that they include."""
    included: set[str] = set()
    todo = list(extras)
    while todo:
        extra = todo.pop()
        included.add(extra)
        requirements = map(Requirement, _project()["optional-dependencies"][extra])
        todo += [more for one in requirements if one.name == NAME for more in one.extras - included]
    return included


def modules() -> list[str]:
    """All modules of the distribution, without programs that are sent to a sandbox as text."""
    source = ROOT / "src"
    paths = [path.relative_to(source).with_suffix("") for path in source.rglob("*.py")]
    paths = [path for path in paths if path.name != "extract_in_sandbox"]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def entry_of(module: str) -> str:
    """The entry of `REQUIRED_EXTRAS` that applies to a module."""
    return max((entry for entry in REQUIRED_EXTRAS if f"{module}.".startswith(f"{entry}.")), key=len)


def importable_modules(extras: Extras) -> list[str]:
    """The modules that must be importable with these extras."""
    included = included_extras(extras)
    required = {module: set(REQUIRED_EXTRAS[entry_of(module)]) for module in modules()}
    return [module for module, enough in required.items() if not enough or enough & included]


def commands(group: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """All commands of `antwort`, with their subcommands."""
    yield list(path)
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, (*path, name))


@dataclass(frozen=True)
class Installation:
    """A Python with some packages. `antwort` and `python` are the beginnings of commands."""

    python: Sequence[str]
    antwort: Sequence[str]
    variables: dict[str, str]

    def run(self, *command: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a command with the variables of this installation."""
        hidden = ("ANTWORT_", "PYTHON", "OPENAI_", "SANDBOX_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environment = {**kept, **self.variables, "ANTWORT_MODELS_DISCOVER": "false"}
        return subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def probe(self, modules: Iterable[str], directory: Path) -> dict:
        """The results of `probe_installation.py`."""
        asked = json.dumps({"commands": list(commands()), "modules": list(modules)})
        done = self.run(*self.python, str(PROBE), asked, directory=directory)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def check_help(probed: dict) -> None:
    """`--help` of every command exits with 0, and says what the command does or what to install."""
    assert [one for one in probed["help"] if one["status"] != 0] == []
    assert [one for one in probed["help"] if "Usage: " not in one["output"] or "Traceback" in one["output"]] == []


# ── installation by links to this environment's packages ─────────────────────────────────────────────────────────────


def linked_installation(extras: Extras, folder: Path) -> Installation:
    """The source with only the packages of these extras: links to those of the running environment."""
    folder.mkdir()
    for name in _distributions(extras):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (folder / top).is_symlink():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    python = (sys.executable, "-S")  # without the site-packages of the running environment
    path = os.pathsep.join([str(ROOT / "src"), str(folder)])
    return Installation(python, (*python, "-m", "antwort"), {"PYTHONPATH": path})


def _distributions(extras: Extras) -> set[str]:
    """The names of all distributions that an installation with these extras has."""
    project = _project()
    lines = [*project["dependencies"]]
    for extra in included_extras(extras):
        lines += project["optional-dependencies"][extra]
    todo = [Requirement(line) for line in lines]
    found: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name == NAME or (name, extra) in found:
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                found.add((name, extra))
                inner = map(Requirement, distribution(name).requires or ())
                todo += [_without_extra(one) for one in inner if _applies(one, extra)]
    return {name for name, _ in found}


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _without_extra(requirement: Requirement) -> Requirement:
    """The requirement of an applicable line; its marker has been evaluated."""
    requirement.marker = None
    return requirement
