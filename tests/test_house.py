"""Repository rules that no other tool checks: public names, lengths, layout, vocabulary, lint exceptions, lock files.

Each test collects all violations of its rule and asserts that there are none, so a failure lists all of them.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TESTS = ROOT / "tests"
LOCKS = sorted(ROOT.glob("requirements/*.lock"))

MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 100
MAX_MODULES_IN_FOLDER = 14
GENERIC_NAMES = {"common", "helper", "helpers", "misc", "shared", "util", "utils"}
TEST_FOLDERS_WITHOUT_SOURCE = {"attacks", "clients", "conformance", "deploy", "together", "wire"}

PROGRAMS = [path for folder in ("bench", "examples", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCE_FILES = sorted(SOURCE.rglob("*.py"))
TEST_FILES = sorted(TESTS.rglob("*.py"))
CODE = [*SOURCE_FILES, *TEST_FILES, *PROGRAMS]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """The import name of a file under src."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# ── Public names ─────────────────────────────────────────────────────────────────────────────────────────────────────

PUBLIC_PACKAGES = [
    path
    for path in SOURCE_FILES
    if path.name == "__init__.py" and not any(part.startswith("_") for part in dotted(path).split("."))
]


@pytest.mark.parametrize("path", PUBLIC_PACKAGES, ids=dotted)
def test_every_name_in_all_exists(path):
    package = importlib.import_module(dotted(path))
    listed = getattr(package, "__all__", None)

    assert listed is not None, "define __all__ (ruff keeps it sorted)"
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not hasattr(package, name)] == []


@pytest.mark.parametrize("path", PUBLIC_PACKAGES, ids=dotted)
def test_every_public_name_of_a_package_is_in_all(path):
    listed = set(getattr(importlib.import_module(dotted(path)), "__all__", ()))
    bound = {name for name in first_party_names(tree(path)) if not name.startswith("_")}

    assert bound - listed == set()


def first_party_names(module: ast.Module) -> Iterator[str]:
    """Names that a module defines or imports from this project, also under TYPE_CHECKING."""
    for node in top_level(module):
        match node:
            case ast.ImportFrom(module=origin, names=names, level=level) if level or is_first_party(origin):
                yield from (alias.asname or alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.asname for alias in names if alias.asname and is_first_party(alias.name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def top_level(module: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, with those under a top-level `if`."""
    for node in module.body:
        yield from (*node.body, *node.orelse) if isinstance(node, ast.If) else (node,)


def is_first_party(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in {"antwort", "weakincentives"}


def test_weakincentives_imports_without_extras():
    code = "import sys; before = {*sys.modules}; import weakincentives; print(*{*sys.modules} - before)"
    loaded = {
        name.partition(".")[0] for name in subprocess.check_output([sys.executable, "-c", code], text=True).split()
    }
    core = {Requirement(line).name for line in pyproject()["project"]["dependencies"]}

    assert loaded - sys.stdlib_module_names - core == {"weakincentives"}


def test_source_uses_every_dependency_of_the_extras():
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE_FILES)
    modules = defaultdict(set)
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules[canonicalize_name(distribution)].add(module)
    modules["claude-agent-sdk"] = {"claude_agent_sdk"}  # not in the development environment
    extras = [extra for extra in pyproject()["project"]["optional-dependencies"] if extra != "dev"]
    required = {canonicalize_name(requirement.name) for extra in extras for requirement in requirements(extra)}
    unused = {
        name for name in required if not any(re.search(rf"\b{re.escape(module)}\b", source) for module in modules[name])
    }

    assert unused == set()


# ── Lengths ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_file_exceeds_the_line_limit():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}

    assert {file: lines for file, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_exceeds_the_line_limit():
    lengths = {
        f"{relative(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {function: lines for function, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


# ── Layout ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_file_or_folder_has_a_generic_name():
    names = {part for path in CODE for part in path.relative_to(ROOT).with_suffix("").parts}

    assert {name for name in names if GENERIC_NAMES & set(name.split("_"))} == set()


def test_no_folder_of_the_source_has_too_many_modules():
    modules = defaultdict(list)
    for path in SOURCE_FILES:
        if path.name != "__init__.py":
            modules[relative(path.parent)].append(path.stem)

    assert {folder: names for folder, names in modules.items() if len(names) > MAX_MODULES_IN_FOLDER} == {}


def test_architecture_page_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = [path.parent.relative_to(SOURCE).as_posix() for path in SOURCE_FILES if path.name == "__init__.py"]

    assert [package for package in packages if f"`{package}/`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_source_path_that_a_page_names_exists(page):
    named = re.findall(r"`((?:antwort|weakincentives)/[\w/.]*)`", page.read_text(encoding="utf-8"))

    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_no_class_is_a_mixin():
    assert {place for name, places in classes(CODE).items() if "mixin" in name.lower() for place in places} == set()


def classes(paths: list[Path]) -> dict[str, list[str]]:
    """The places of all class definitions by name."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{relative(path)}:{node.lineno}")
    return found


def test_every_module_has_a_docstring_whose_first_line_is_a_sentence():
    first_lines = {relative(path): (ast.get_docstring(tree(path)) or "").partition("\n")[0] for path in SOURCE_FILES}

    assert {file: line for file, line in first_lines.items() if not re.fullmatch(r"\S+ .*[.]", line)} == {}


def test_every_test_file_has_a_source_file():
    strays = {relative(path) for path in TEST_FILES if path.name.startswith("test_") and not has_source(path)}

    assert strays == set(), "name the test after the file it tests, or move it to tests/together"


def has_source(test: Path) -> bool:
    path = test.relative_to(TESTS)
    if len(path.parts) == 1 or TEST_FOLDERS_WITHOUT_SOURCE & set(path.parts):
        return True
    tested = SOURCE / path.parent / test.stem.removeprefix("test_")
    return tested.with_suffix(".py").exists() or (tested / "__init__.py").exists()


# ── Vocabulary ───────────────────────────────────────────────────────────────────────────────────────────────────────

ALLOWED_DUPLICATES: dict[str, str] = {
    "Container": "the object of the Containers API in the client, its process in the sandbox server",
    "CodeInterpreterCall": "one object of the wire, which the server writes and the client reads",
    "ContainerFileCitation": "the same",
    "FileCitation": "the same",
    "ModelRequest": "one request to a model, of the client's loop and of the server's",
    "NetworkPolicy": "the network of commands: of the Claude Agent SDK's CLI in the client, of containers on the wire",
    "ToolContext": "what a tool gets besides its arguments, in the client and in the server",
    "ToolRegistry": "the protocol of the engine, and its implementation",
    "UrlCitation": "one object of the wire, which the server writes and the client reads",
}
"""Public class names that several modules may define, each with the reason. All others are unique in src."""

METAPHORS = re.compile(
    "annex(?:es)?|(?:any|every|no|some)body|aloud|anew|doors?|floors?|gallery|gates?|heard|hears?|holdings|house|lobby"
    "|lodgers?|neighbours?|ours|patience|rooms?|shel(?:f|ves)|stages?|strangers?|theirs|told|toolbox|turnstiles?"
    "|whoever|workbench"
)
METAPHOR_PHRASES = re.compile(r"\b(?:at work|lets? go|told to)\b", re.IGNORECASE)
ALLOWED_USES: dict[str, str] = {
    r"tests/test_house\.py": "the name of this file",
}
"""Regular expressions of normal uses of these words, each with the reason. A line is checked without them."""


def test_every_public_class_name_has_one_meaning():
    duplicates = {
        name: places
        for name, places in classes(SOURCE_FILES).items()
        if not name.startswith("_") and len({place.partition(":")[0] for place in places}) > 1
    }

    assert {name: places for name, places in duplicates.items() if name not in ALLOWED_DUPLICATES} == {}
    assert set(ALLOWED_DUPLICATES) - set(duplicates) == set(), "remove the entries that are no longer needed"


def test_no_metaphor_stands_for_a_technical_term():
    found = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in [*CODE, *PAGES]
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if has_metaphor(line)
    ]

    assert found == []


def has_metaphor(line: str) -> bool:
    for allowed in ALLOWED_USES:
        line = re.sub(allowed, "", line)
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line)
    return any(METAPHORS.fullmatch(word.lower()) for word in words) or bool(METAPHOR_PHRASES.search(line))


# ── Lint exceptions ──────────────────────────────────────────────────────────────────────────────────────────────────

SUPPRESSION = re.compile(r"#\s*(?:noqa|(?:type|pyright):\s*ignore)\b(?::\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*|\[[^\]]*\])?")
REASON = re.compile(r"\W*\w+\W+\w+")


def test_every_ignored_lint_rule_has_a_reason():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start, end = lines.index("[tool.ruff.lint]"), lines.index("[tool.ruff.lint.isort]")
    ignores = [line for line in lines[start:end] if re.match(r'\s+"[A-Z]+\d*"', line)]

    assert ignores
    assert [line for line in ignores if not re.search(r"# \S", line)] == []


def test_every_suppression_comment_has_a_reason():
    unexplained = [
        f"{relative(path)}:{line} {comment}"
        for path in CODE
        for line, comment in comments(path)
        for match in SUPPRESSION.finditer(comment)
        if not REASON.match(comment, match.end())
    ]

    assert unexplained == [], "add a reason, as in `# noqa: BLE001 - the outermost loop`"


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


# ── Machine-specific content and lock files ──────────────────────────────────────────────────────────────────────────

REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b")
HOME_FOLDER = re.compile(r"(?<![\w.])/(?:home|Users)/\w+/")
PIN = re.compile(r"[a-z0-9][a-z0-9.-]*(?:\[[a-z0-9,-]+\])?==[^\s;]+(?: ; [^\\]+)?(?: \\)?")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
COMMENT = re.compile(r"\s*#.*")


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that git tracks or would add."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, cwd=ROOT, text=True).split("\0"):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_no_file_names_a_package_registry_or_a_local_folder():
    here = re.compile(re.escape(str(ROOT)) + r"(?!\w)")
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts()
        for pattern in (REGISTRY_HOST, HOME_FOLDER, here)
        for match in pattern.finditer(text)
    ]

    assert found == []


@pytest.mark.parametrize("lock", LOCKS, ids=relative)
def test_lock_file_contains_only_pins_and_hashes(lock):
    lines = lock.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if not any(kind.fullmatch(line) for kind in (PIN, HASH, COMMENT))] == []


def test_node_lock_file_contains_the_pins_of_its_package_file_and_no_addresses():
    folder = TESTS / "clients"
    pins = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    packages = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    installed = {name: package for name, package in packages.items() if name}

    assert {name: installed[f"node_modules/{name}"]["version"] for name in pins} == pins, "run `make lock`"
    assert [name for name, package in installed.items() if "resolved" in package] == []
    assert [name for name, package in installed.items() if not package.get("integrity", "").startswith("sha512-")] == []


def test_dev_lock_satisfies_pyproject():
    text = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)(?:\[.*\])?==(\S+)", text, re.MULTILINE))
    broken = [
        str(requirement)
        for requirement in requirements("dev")
        if not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0"))
    ]

    assert broken == [], "run `make lock`"


def requirements(extra: str | None = None) -> Iterator[Requirement]:
    """The dependencies of pyproject.toml with those of an extra and of the extras that it includes."""
    project = pyproject()["project"]
    lines = project["optional-dependencies"][extra] if extra else []
    for requirement in map(Requirement, [*project["dependencies"], *lines]):
        if requirement.name == project["name"]:
            for included in sorted(requirement.extras):
                yield from requirements(included)
        else:
            yield requirement
