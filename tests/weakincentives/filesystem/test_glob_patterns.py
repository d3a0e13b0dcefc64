from __future__ import annotations

import glob
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weakincentives.errors import InvalidPathError
from weakincentives.filesystem.glob_patterns import compile_glob, literal_prefix


@pytest.mark.parametrize(
    "pattern, matching, others",
    [
        ("*.py", ["a.py", ".py"], ["src/a.py", "a.pyc"]),
        ("**/*.py", ["a.py", "src/a.py", "src/lib/a.py"], ["a.txt"]),
        ("**/**/**/a", ["a", "x/a", "x/y/z/a"], ["xa"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "srcs/a"]),
        ("**", ["a", "a/b"], []),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("?", ["a", "é", "\n"], ["ab", ""]),
        ("[a-c]x", ["ax", "cx"], ["dx", "/x"]),
        ("[!a]", ["b", "]"], ["a", "/"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[z-a]", [], ["z", "a", "b"]),
        ("[!z-a]", ["z"], []),
        ("[a", ["[a"], ["a"]),
        ("*.{ts,tsx}", ["a.ts", "b.tsx"], ["a.t", "a.{ts,tsx}"]),
        ("{a,b{c,d}}", ["a", "bc", "bd"], ["b"]),
        ("{src/a,b}/x", ["src/a/x", "b/x"], ["a/x"]),
        ("{a,**/b}", ["a", "b", "x/b"], ["x/a"]),
        ("{a", ["{a"], ["a"]),
        ("a}", ["a}"], ["a"]),
        ("a,b", ["a,b"], ["a"]),
        ("{[}]", ["{}"], ["}"]),
        ("[{]{a,b}", ["{a", "{b"], ["{{a,b}"]),
        ("a.b+(c)|$", ["a.b+(c)|$"], ["axb"]),
        ("./a//b", ["a/b"], []),
    ],
)
def test_pattern_matches(pattern, matching, others):
    compiled = compile_glob(pattern)

    assert [path for path in matching if not compiled.fullmatch(path)] == []
    assert [path for path in others if compiled.fullmatch(path)] == []


@pytest.mark.parametrize("pattern", ["../*.py", "/etc/*", "a\\b", "\0"])
def test_pattern_cannot_leave_the_root(pattern):
    with pytest.raises(InvalidPathError):
        compile_glob(pattern)


@given(st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_escaped_name_matches_only_itself(name):
    if name in {".", ".."}:
        return
    escaped = glob.escape(name).replace("{", "[{]").replace("}", "[}]")

    assert compile_glob(escaped).fullmatch(name)
    assert not compile_glob(escaped).fullmatch(name + "x")


@given(st.text("ab*?[]!-{},/.", max_size=30))
@example("[?--]")  # `re` warns about two hyphens in a set
def test_every_pattern_compiles(pattern):
    try:
        compiled = compile_glob(pattern)
    except InvalidPathError:
        return

    assert compiled.groups == 0  # braces do not create capture groups


@given(
    st.lists(st.sampled_from(["a", "b", "*", "?", "a*"]), min_size=1, max_size=4),
    st.text("ab/", min_size=1, max_size=8),
)
def test_single_stars_agree_with_pathlib(parts, path):
    if path.strip("/") != path or "//" in path:
        return
    same_depth = path.count("/") == len(parts) - 1

    assert bool(compile_glob("/".join(parts)).fullmatch(path)) == (
        same_depth and PurePosixPath(path).match("/".join(parts))
    )


@pytest.mark.parametrize(
    "pattern, prefix",
    [("*.py", "."), ("src/*.py", "src"), ("src/a/**/x", "src/a"), ("src/a/b", "src/a"), ("{a,b}/c", "."), ("a", ".")],
)
def test_literal_prefix(pattern, prefix):
    assert literal_prefix(pattern) == prefix
