"""Create a virtual environment and fill it with exactly what a lock file pins.

    python3 scripts/set_up.py .venv requirements/dev.lock

It runs on the machine's own interpreter before anything is installed. So it
imports the standard library only, parses on a Python that is too old (to be able
to say so), and turns each way to fail into one sentence that says what to do.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
INSTALLER_LOCK = os.path.join("requirements", "uv.lock")


class SetUpError(Exception):
    """A prerequisite is missing; the message tells the reader what to do."""


def main(environment: str, lock: str) -> None:
    """Make `environment` hold what `lock` pins, and nothing else."""
    require_python()
    if not is_current(environment):
        create(environment)
    install_uv(environment)
    synchronise(environment, lock)


def require_python() -> None:
    """Refuse a Python that is too old."""
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:3])
        raise SetUpError(
            f"{sys.executable} is Python {found}, and this needs 3.11 or newer: "
            "install one and name it, as in `make PYTHON=python3.12 test`"
        )


def is_current(environment: str) -> bool:
    """Whether the environment exists, works, and was made by this very version of Python."""
    question = f"import sys, pip; sys.exit(sys.version_info[:3] != {tuple(sys.version_info[:3])})"
    return os.path.exists(python_of(environment)) and run(python_of(environment), "-c", question).worked


def create(environment: str) -> None:
    """Make a new, empty environment."""
    creating = run(sys.executable, "-m", "venv", "--clear", environment)
    if not creating.worked:
        raise SetUpError(
            f"{sys.executable} cannot create a virtual environment: install its venv module "
            f"(on Debian and Ubuntu `apt-get install python3-venv`) and run make again\n{creating.output}"
        )


def install_uv(environment: str) -> None:
    """Put the installer into the environment, with the one that every environment has."""
    installing = run(
        python_of(environment), "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", INSTALLER_LOCK
    )
    if not installing.worked:
        raise SetUpError(unreachable("the installer, uv,", "pip", installing.output))


def synchronise(environment: str, lock: str) -> None:
    """Install what the lock pins, and remove what it does not."""
    python = python_of(environment)
    sync = ("-m", "uv", "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode")
    installing = run(python, *sync, "--python", python, lock)
    if not installing.worked:
        raise SetUpError(unreachable(f"what {lock} pins", "uv", installing.output))


def unreachable(what: str, client: str, output: str) -> str:
    """The advice for when a download fails."""
    return (
        f"{what} could not be installed: check that this machine reaches a package index "
        f"(its network, its proxy, or the index settings of {client}) and run make again\n{output}"
    )


def python_of(environment: str) -> str:
    """The environment's own interpreter."""
    return os.path.join(environment, "bin", "python")


class Outcome:
    """How a command ended: whether it worked, and the end of what it said."""

    def __init__(self, worked: bool, output: str) -> None:  # noqa: FBT001 - a plain pair; a dataclass is too new
        self.worked = worked
        self.output = output


def run(*command: str) -> Outcome:
    """Run a command quietly."""
    # The parameter that would be `text=True` is called so on every Python that gets here.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    output, _ = process.communicate()
    return Outcome(process.returncode == 0, "\n".join("    " + line for line in output.strip().splitlines()[-8:]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SetUpError as problem:
        sys.exit(f"make: {problem}")
