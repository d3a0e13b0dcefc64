"""Optional dependencies (extras of the distribution): which one each command needs, and how to install it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple

_OWN_PACKAGES: Final = {"antwort", "weakincentives"}
_CHARACTERISTIC_MODULES: Final = {"sandbox": "matplotlib"}
"""Modules that come with an extra only. What the commands import may have come with some other package."""


class Command(NamedTuple):
    """A command of `antwort`: the module that defines it, and the extra that it needs."""

    module: str
    extra: str


COMMANDS: Final = {
    "conformance": Command("antwort.conformance.cli", "server"),
    "doctor": Command("antwort.http.cli", "server"),
    "export": Command("antwort.storage.cli", "server"),
    "import": Command("antwort.storage.cli", "server"),
    "keys": Command("antwort.http.cli", "server"),
    "migrate": Command("antwort.storage.cli", "server"),
    "model": Command("antwort.models.embedded.cli", "model"),
    "sandbox": Command("antwort.sandbox.cli", "sandbox"),
    "serve": Command("antwort.http.cli", "server"),
}


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'weakincentives[{extra}]'"


def require(extra: str) -> None:
    """Raise `ModuleNotFoundError` if the characteristic module of an extra is not installed."""
    module = _CHARACTERISTIC_MODULES.get(extra)
    if module is not None and find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def explain_missing(error: ModuleNotFoundError, extra: str) -> str:
    """What to install after a failed import. A missing module of this project is a defect of it: raised again."""
    module = (error.name or "").partition(".")[0]
    if not module or module in _OWN_PACKAGES:
        raise error
    return f"needs the extra `{extra}` (no module {module!r}): {install_command(extra)}"
