"""Lists the installed Python interpreters for `make test-all`, one per supported minor version.

Prints lines such as `3.12 <path>`. Searches PATH and pyenv's versions, and runs each interpreter to check it, because a
pyenv shim on PATH fails for a version that is not selected.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13")

# Some distributions package venv and ensurepip separately; scripts/set_up.py needs both.
VERSION_CODE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[Path]:
    """Possible paths of an interpreter of this version, the most likely first."""
    name = f"python{version}"
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".")):
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder, name)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{version}.*/bin/{name}"), key=patch_number, reverse=True)


def patch_number(interpreter: Path) -> int:
    """The 7 of `versions/3.11.7/bin/python3.11`; -1 for a pre-release."""
    patch = interpreter.parent.parent.name.split(".")[-1]
    return int(patch) if patch.isdecimal() else -1


def works(interpreter: Path, version: str) -> bool:
    """Whether the interpreter runs and has this version."""
    if not os.access(interpreter, os.X_OK):
        return False
    try:
        result = subprocess.run(
            [interpreter, "-c", VERSION_CODE], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and result.stdout.strip() == version


def main() -> None:
    """Print one working interpreter per supported version; exit with an error if there is none."""
    found = {
        version: next((path for path in candidates(version) if works(path, version)), None) for version in SUPPORTED
    }
    for version, interpreter in found.items():
        if interpreter is not None:
            print(version, interpreter)
        else:
            print(f"── Python {version} not found: skipped", file=sys.stderr)
    if not any(found.values()):
        sys.exit(f"make: no Python {', '.join(SUPPORTED)} found: install one of them")


if __name__ == "__main__":
    main()
