"""The rules of the house that no other tool checks.

Each test collects everything that breaks its rule and then asserts that there is
nothing, so a failure lists all the places to mend.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TESTS = ROOT / "tests"
LOCKS = sorted(ROOT.glob("requirements/*.lock"))

LONGEST_FILE = 700
LONGEST_FUNCTION = 100
ROOMS_WITHOUT_A_NAME = {"common", "helper", "helpers", "misc", "shared", "util", "utils"}
TESTS_OF_NO_SINGLE_FILE = {"attacks", "conformance", "together", "wire"}

PROGRAMS = [path for folder in ("bench", "examples", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCE_FILES = sorted(SOURCE.rglob("*.py"))
TEST_FILES = sorted(TESTS.rglob("*.py"))
CODE = [*SOURCE_FILES, *TEST_FILES, *PROGRAMS]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """The name that a file under src is imported by."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# ── What is public ───────────────────────────────────────────────────────────────────────────────────────────────────

PUBLIC_PACKAGES = [
    path
    for path in SOURCE_FILES
    if path.name == "__init__.py" and not any(part.startswith("_") for part in dotted(path).split("."))
]


@pytest.mark.parametrize("path", PUBLIC_PACKAGES, ids=dotted)
def test_a_package_lists_what_is_public_and_has_all_of_it(path):
    package = importlib.import_module(dotted(path))
    listed = getattr(package, "__all__", None)

    assert listed is not None, "say what is public: __all__ (ruff keeps it sorted)"
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not hasattr(package, name)] == []


@pytest.mark.parametrize("path", PUBLIC_PACKAGES, ids=dotted)
def test_a_package_binds_nothing_public_that_it_does_not_list(path):
    listed = set(getattr(importlib.import_module(dotted(path)), "__all__", ()))
    bound = {name for name in names_of_ours(tree(path)) if not name.startswith("_")}

    assert bound - listed == set()


def names_of_ours(module: ast.Module) -> Iterator[str]:
    """What a module defines, and what it imports from our packages (also for the type checker's eyes only)."""
    for node in top_level(module):
        match node:
            case ast.ImportFrom(module=origin, names=names, level=level) if level or is_ours(origin):
                yield from (alias.asname or alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.asname for alias in names if alias.asname and is_ours(alias.name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def top_level(module: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, with those under a top-level `if`."""
    for node in module.body:
        yield from (*node.body, *node.orelse) if isinstance(node, ast.If) else (node,)


def is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in {"antwort", "weakincentives"}


def test_the_client_imports_without_any_extra():
    code = "import sys; before = {*sys.modules}; import weakincentives; print(*{*sys.modules} - before)"
    loaded = {
        name.partition(".")[0] for name in subprocess.check_output([sys.executable, "-c", code], text=True).split()
    }
    core = {Requirement(line).name for line in pyproject()["project"]["dependencies"]}

    assert loaded - sys.stdlib_module_names - core == {"weakincentives"}


# ── The tail ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_file_is_too_long_to_read_in_one_sitting():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}

    assert {file: lines for file, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_function_is_too_long_to_hold_in_mind():
    lengths = {
        f"{relative(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {function: lines for function, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}


# ── The rooms ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_room_has_a_name_of_its_own():
    rooms = {part for path in CODE for part in path.relative_to(ROOT).with_suffix("").parts}

    assert {room for room in rooms if ROOMS_WITHOUT_A_NAME & set(room.split("_"))} == set()


def test_there_are_no_mixins():
    classes = {
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower()
    }

    assert classes == set()


def test_every_file_says_what_lives_in_it():
    first_lines = {relative(path): (ast.get_docstring(tree(path)) or "").partition("\n")[0] for path in SOURCE_FILES}

    assert {file: line for file, line in first_lines.items() if not re.fullmatch(r"\S+ .*[.]", line)} == {}


def test_the_tests_mirror_the_source():
    strays = {relative(path) for path in TEST_FILES if path.name.startswith("test_") and not has_its_place(path)}

    assert strays == set(), "name the test after the file it tests, or move it to tests/together"


def has_its_place(test: Path) -> bool:
    place = test.relative_to(TESTS)
    if len(place.parts) == 1 or TESTS_OF_NO_SINGLE_FILE & set(place.parts):
        return True
    tested = SOURCE / place.parent / test.stem.removeprefix("test_")
    return tested.with_suffix(".py").exists() or (tested / "__init__.py").exists()


# ── Exceptions to rules have reasons ─────────────────────────────────────────────────────────────────────────────────

SILENCED = re.compile(r"#\s*(?:noqa|(?:type|pyright):\s*ignore)\b(?::\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*|\[[^\]]*\])?")
REASON = re.compile(r"\W*\w+\W+\w+")


def test_every_rule_that_is_off_says_why():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start, end = lines.index("[tool.ruff.lint]"), lines.index("[tool.ruff.lint.isort]")
    ignores = [line for line in lines[start:end] if re.match(r'\s+"[A-Z]+\d*"', line)]

    assert ignores
    assert [line for line in ignores if not re.search(r"# \S", line)] == []


def test_every_silenced_line_says_why():
    silent = [
        f"{relative(path)}:{line} {comment}"
        for path in CODE
        for line, comment in comments(path)
        for silencing in SILENCED.finditer(comment)
        if not REASON.match(comment, silencing.end())
    ]

    assert silent == [], "write a reason behind it, as in `# noqa: BLE001 - the outermost loop`"


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


# ── Nothing of one machine is written down ───────────────────────────────────────────────────────────────────────────

REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b")
PERSONAL_FOLDER = re.compile(r"(?<![\w.])/(?:home|Users)/\w+/")
PIN = re.compile(r"[a-z0-9][a-z0-9.-]*(?:\[[a-z0-9,-]+\])?==[^\s;]+(?: ; [^\\]+)?(?: \\)?")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
COMMENT = re.compile(r"\s*#.*")


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that is, or is about to be, under version control."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, cwd=ROOT, text=True).split("\0"):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_no_file_names_a_registry_or_a_folder_of_one_machine():
    here = re.compile(re.escape(str(ROOT)) + r"(?!\w)")
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts()
        for pattern in (REGISTRY_HOST, PERSONAL_FOLDER, here)
        for match in pattern.finditer(text)
    ]

    assert found == []


@pytest.mark.parametrize("lock", LOCKS, ids=relative)
def test_a_lock_holds_pins_and_hashes_and_nothing_else(lock):
    lines = lock.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if not any(kind.fullmatch(line) for kind in (PIN, HASH, COMMENT))] == []


def test_the_lock_keeps_what_pyproject_promises():
    text = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)(?:\[.*\])?==(\S+)", text, re.MULTILINE))
    broken = [
        str(promise)
        for promise in promises("dev")
        if not promise.specifier.contains(pins.get(canonicalize_name(promise.name), "0"))
    ]

    assert broken == [], "run `make lock`"


def promises(extra: str | None = None) -> Iterator[Requirement]:
    """What pyproject.toml asks for, with an extra and with the extras that this one includes."""
    project = pyproject()["project"]
    lines = project["optional-dependencies"][extra] if extra else []
    for requirement in map(Requirement, [*project["dependencies"], *lines]):
        if requirement.name == project["name"]:
            for included in sorted(requirement.extras):
                yield from promises(included)
        else:
            yield requirement
