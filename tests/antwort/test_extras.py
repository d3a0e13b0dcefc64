"""Each combination of extras, as links to the packages of this environment; `make test-install` installs the wheel.

The package of the extra `claude` is not in this environment, because it is 160 MB.
"""

from __future__ import annotations

import re

import pytest
from fixtures_installation import (
    COMBINATIONS,
    REQUIRED_EXTRAS,
    ROOT,
    check_help,
    commands,
    declared_extras,
    entry_of,
    importable_modules,
    linked_installation,
    modules,
)

from antwort.extras import COMMANDS, explain_missing, install_command


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    made = {}

    def get(*extras):
        if extras not in made:
            made[extras] = linked_installation(extras, tmp_path_factory.mktemp("installation") / "packages")
        return made[extras]

    return get


@pytest.mark.parametrize("extras", [one for one in COMBINATIONS if "claude" not in one], ids=",".join)
def test_help_and_imports_work_with_every_combination_of_extras(installation, tmp_path, extras):
    probed = installation(*extras).probe(importable_modules(extras), tmp_path)

    check_help(probed)
    assert probed["errors"] == {}


def test_every_entry_of_the_table_of_modules_is_needed(installation, tmp_path):
    errors = installation().probe(modules(), tmp_path)["errors"]

    assert {entry_of(module) for module in errors} == {entry for entry, extras in REQUIRED_EXTRAS.items() if extras}
    # After a failed import of its package, the import of a module may be reported as circular.
    assert {error.split(":")[0] for error in errors.values()} <= {"ImportError", "ModuleNotFoundError"}


def test_the_tables_are_complete():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [re.findall(r"(?:\.|weakincentives)\[([a-z,]+)\]", page.read_text(encoding="utf-8")) for page in pages]
    documented = {tuple(extras.split(",")) for page in found for extras in page}

    assert documented - set(COMBINATIONS) == set()
    assert {extras[0] for extras in COMBINATIONS if len(extras) == 1} == declared_extras()
    assert {path[0] for path in commands() if path} == set(COMMANDS)
    assert {command.extra for command in COMMANDS.values()} <= declared_extras()


@pytest.mark.parametrize(
    "extras, command, extra",
    [
        (("server", "sandbox"), ("model", "list"), "model"),
        (("server",), ("sandbox", "--port", "0"), "sandbox"),
        (("testing",), ("sandbox", "--port", "0"), "sandbox"),  # has `packaging`, which the sandbox imports
        (("sandbox",), ("serve",), "server"),
        (("sandbox",), ("keys", "list"), "server"),
        (("sandbox",), ("doctor", "--config", "antwort.yaml"), "server"),
        (("openai",), ("serve",), "server"),
        ((), ("doctor",), "server"),
        ((), (), "server"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(installation, tmp_path, extras, command, extra):
    made = installation(*extras)
    done = made.run(*made.antwort, *command, directory=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'weakincentives[{extra}]'" in done.stderr


def test_the_help_of_a_missing_command_says_what_to_install(installation, tmp_path):
    for made, line in (
        (installation("server", "sandbox"), f"(no module 'platformdirs'): {install_command('model')}\n"),
        (installation(), f"  model    {install_command('model')}\n"),
    ):
        assert line in made.run(*made.antwort, "model", "pull", "--help", directory=tmp_path).stdout


def test_doctor_without_the_extra_server_checks_the_sandbox(installation, tmp_path):
    made = installation("sandbox")
    done = made.run(*made.antwort, "doctor", directory=tmp_path)

    assert f"server         needs the extra `server` (no module 'yaml'): {install_command('server')}" in done.stdout
    assert "A container was started and returned: " in done.stdout or "Missing: " in done.stdout
    assert "Traceback" not in done.stderr


def test_doctor_without_the_extra_sandbox_checks_the_server(installation, tmp_path):
    made = installation("server")
    done = made.run(*made.antwort, "doctor", directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "configuration  ok" in done.stdout
    assert (
        f"sandbox        needs the extra `sandbox` (no module 'matplotlib'): {install_command('sandbox')}"
        in done.stdout
    )


def test_a_store_whose_extra_is_missing_is_a_start_up_error(installation, tmp_path):
    made = installation("server")
    for extra, text in (
        ("objectstore", "storage: {blobs: 's3://bucket/prefix'}"),
        ("postgres", "storage: {url: 'postgresql://host/database'}"),
    ):
        (tmp_path / "antwort.yaml").write_text(text, encoding="utf-8")
        for command in ("serve", "import"):
            arguments = [command, "--config", "antwort.yaml", *(["/dev/null"] if command == "import" else [])]
            done = made.run(*made.antwort, *arguments, directory=tmp_path)
            assert done.returncode == 1
            assert f"pip install 'weakincentives[{extra}]'" in done.stderr or command == "import"
            assert "Traceback" not in done.stderr


def test_a_missing_module_of_this_project_is_not_explained():
    with pytest.raises(ModuleNotFoundError):
        explain_missing(ModuleNotFoundError("No module named 'antwort.nothing'", name="antwort.nothing"), "server")
