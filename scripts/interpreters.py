"""List the Pythons of this machine that the suite can run on, one of each minor version.

Prints lines such as `3.12 <path>`. It looks where PATH points and where pyenv
keeps its versions, and believes an interpreter only after running it: a pyenv shim
may stand on PATH for a version that is not selected, and refuse.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13")

# venv and ensurepip are left out of some distributions' Pythons, and the set-up needs both.
QUESTION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[Path]:
    """Where a Python of this version may be, the likeliest first."""
    name = f"python{version}"
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".")):
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder, name)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{version}.*/bin/{name}"), key=patch_number, reverse=True)


def patch_number(interpreter: Path) -> int:
    """The 7 of `versions/3.11.7/bin/python3.11`; a pre-release counts as below zero."""
    patch = interpreter.parent.parent.name.split(".")[-1]
    return int(patch) if patch.isdecimal() else -1


def works(interpreter: Path, version: str) -> bool:
    """Whether it runs and is what its name says."""
    if not os.access(interpreter, os.X_OK):
        return False
    try:
        answer = subprocess.run([interpreter, "-c", QUESTION], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def main() -> None:
    """Print one working interpreter of each supported version; none at all is no success."""
    found = {
        version: next((path for path in candidates(version) if works(path, version)), None) for version in SUPPORTED
    }
    for version, interpreter in found.items():
        if interpreter is not None:
            print(version, interpreter)
        else:
            print(f"── Python {version} is not on this machine: left out", file=sys.stderr)
    if not any(found.values()):
        sys.exit(f"make: there is no Python {', '.join(SUPPORTED)} here to test on: install one of them")


if __name__ == "__main__":
    main()
