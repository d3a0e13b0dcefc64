"""Creates a virtual environment with exactly the packages of a lock file.

    python3 scripts/set_up.py .venv requirements/dev.lock

It runs on the system's interpreter before anything is installed. So it imports the standard library only, parses on an
unsupported Python (to report it), and reports each failure in one sentence with its remedy.
"""

import os
import subprocess
import sys

MIN_VERSION = (3, 11)
INSTALLER_LOCK = os.path.join("requirements", "uv.lock")


class SetUpError(Exception):
    """A prerequisite is missing. The message contains the remedy."""


def main(environment: str, lock: str) -> None:
    """Install the packages of `lock` into `environment`, and remove all others."""
    require_python()
    if not is_current(environment):
        create(environment)
    install_uv(environment)
    synchronise(environment, lock)


def require_python() -> None:
    """Raise `SetUpError` on an unsupported Python."""
    if sys.version_info < MIN_VERSION:
        found = ".".join(str(part) for part in sys.version_info[:3])
        raise SetUpError(
            f"{sys.executable} is Python {found}; 3.11 or newer is required: "
            "install one and name it, as in `make PYTHON=python3.12 test`"
        )


def is_current(environment: str) -> bool:
    """Whether the environment exists, works, and has this version of Python."""
    code = f"import sys, pip; sys.exit(sys.version_info[:3] != {tuple(sys.version_info[:3])})"
    return os.path.exists(interpreter_path(environment)) and run(interpreter_path(environment), "-c", code).succeeded


def create(environment: str) -> None:
    """Create a new, empty environment."""
    creating = run(sys.executable, "-m", "venv", "--clear", environment)
    if not creating.succeeded:
        raise SetUpError(
            f"{sys.executable} cannot create a virtual environment: install its venv module "
            f"(on Debian and Ubuntu `apt-get install python3-venv`) and run make again\n{creating.output}"
        )


def install_uv(environment: str) -> None:
    """Install uv with pip."""
    installing = run(
        interpreter_path(environment),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--requirement",
        INSTALLER_LOCK,
    )
    if not installing.succeeded:
        raise SetUpError(download_error("uv", "pip", installing.output))


def synchronise(environment: str, lock: str) -> None:
    """Install the packages of the lock file, and remove all others."""
    python = interpreter_path(environment)
    sync = ("-m", "uv", "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode")
    installing = run(python, *sync, "--python", python, lock)
    if not installing.succeeded:
        raise SetUpError(download_error(f"the packages of {lock}", "uv", installing.output))


def download_error(what: str, client: str, output: str) -> str:
    """The error message for a failed download."""
    return (
        f"{what} could not be installed: check that this machine reaches a package index "
        f"(its network, its proxy, or the index settings of {client}) and run make again\n{output}"
    )


def interpreter_path(environment: str) -> str:
    """The path of the environment's interpreter."""
    return os.path.join(environment, "bin", "python")


class CommandResult:
    """The result of a command: success, and the last lines of its output."""

    def __init__(self, succeeded: bool, output: str) -> None:  # noqa: FBT001 - a plain pair; old Pythons lack dataclasses
        self.succeeded = succeeded
        self.output = output


def run(*command: str) -> CommandResult:
    """Run a command and capture its output."""
    # `universal_newlines` is the name of `text` on old Pythons.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    output, _ = process.communicate()
    return CommandResult(process.returncode == 0, "\n".join("    " + line for line in output.strip().splitlines()[-8:]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SetUpError as error:
        sys.exit(f"make: {error}")
