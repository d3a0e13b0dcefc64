"""Create a virtual environment and fill it with exactly what a lock file pins.

    python3 scripts/set_up.py .venv requirements/dev.lock

Runs on the machine's own interpreter, whatever its age, before anything is
installed: so it imports the standard library only, uses no syntax newer than
Python 3.0, and turns each way to fail into one sentence that says what to do.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
INSTALLER_LOCK = os.path.join("requirements", "uv.lock")


class SetUpError(Exception):
    """A prerequisite is missing; the message tells the reader what to do."""


def main(environment, lock):
    require_python()
    if not is_current(environment):
        create(environment)
    install_uv(environment)
    synchronise(environment, lock)


def require_python():
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:3])
        raise SetUpError(
            "this needs Python %d.%d or newer, and %s is %s: install a newer one and run `make PYTHON=python3.12 …`"
            % (OLDEST + (sys.executable, found))
        )


def is_current(environment):
    """Whether the environment exists, works, and was made by this very version of Python."""
    asking = "import sys, pip; sys.exit(sys.version_info[:3] != %r)" % (tuple(sys.version_info[:3]),)
    return os.path.exists(python_of(environment)) and run([python_of(environment), "-c", asking])[0]


def create(environment):
    worked, output = run([sys.executable, "-m", "venv", "--clear", environment])
    if not worked:
        raise SetUpError(
            "%s cannot create a virtual environment: install its venv module "
            "(on Debian and Ubuntu: `apt-get install python3-venv`) and run make again\n%s" % (sys.executable, output)
        )


def install_uv(environment):
    installing = ["-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", INSTALLER_LOCK]
    worked, output = run([python_of(environment)] + installing)
    if not worked:
        raise SetUpError(unreachable("the installer (uv)", "pip", output))


def synchronise(environment, lock):
    uv = [python_of(environment), "-m", "uv", "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode"]
    worked, output = run(uv + ["--python", python_of(environment), lock])
    if not worked:
        raise SetUpError(unreachable("what %s pins" % lock, "uv", output))


def unreachable(what, client, output):
    return (
        "%s could not be installed: check that this machine reaches a package index "
        "(the network, a proxy, or the index settings of %s) and run make again\n%s" % (what, client, output)
    )


def python_of(environment):
    return os.path.join(environment, "bin", "python")


def run(command):
    """Run it quietly; whether it worked, and the end of what it said."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    output = process.communicate()[0]
    return process.returncode == 0, "\n".join("    " + line for line in output.strip().splitlines()[-8:])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SetUpError as problem:
        sys.exit("make: %s" % problem)
