from __future__ import annotations

import pytest

from weakincentives.adapters.claude_agent_sdk.policy import refusal

OFFERED = ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "mcp__wink__run")


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "work" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "work" / "loop").symlink_to("loop")
    return tmp_path / "work"


@pytest.mark.parametrize(
    "name,arguments",
    [
        ("Read", {"file_path": "src/a"}),
        ("Read", {"file_path": "{directory}/src/a"}),
        ("Write", {"file_path": "new/file"}),
        ("Glob", {"pattern": "**/*.py"}),
        ("Glob", {"pattern": "{a,b}/*.py", "path": "src"}),
        ("Glob", {"pattern": "{directory}/**"}),
        ("Grep", {"pattern": "../x", "path": "."}),
        ("Grep", {"pattern": "x"}),
        ("Bash", {"command": "cat /etc/passwd"}),  # the sandbox decides
        ("mcp__wink__run", {"file_path": "/etc/passwd"}),
        ("StructuredOutput", {}),
    ],
)
def test_allowed(directory, name, arguments):
    arguments = {key: value.replace("{directory}", str(directory)) for key, value in arguments.items()}
    assert refusal(name, arguments, offered=OFFERED, directory=directory) is None


@pytest.mark.parametrize(
    "name,arguments",
    [
        ("Read", {"file_path": "/etc/passwd"}),
        ("Read", {"file_path": "../outside/x"}),
        ("Read", {"file_path": "link/x"}),
        ("Read", {"file_path": "~/.ssh/id_rsa"}),
        ("Read", {"file_path": "a\0b"}),
        ("Read", {"file_path": "{directory}2/x"}),
        ("Write", {"file_path": "/var/x"}),
        ("Edit", {"file_path": "/proc/self/environ"}),
        ("Glob", {"pattern": "/etc/*"}),
        ("Glob", {"pattern": "../*"}),
        ("Glob", {"pattern": "src/*/../../../outside/*"}),
        ("Glob", {"pattern": "{/etc,src}/*"}),
        ("Glob", {"pattern": "{src,/etc}/*"}),
        ("Glob", {"pattern": "*", "path": "/"}),
        ("Grep", {"pattern": "x", "path": "link"}),
        ("Bash", {"command": "ls", "dangerouslyDisableSandbox": True}),
        ("Bash", {"command": "ls", "run_in_background": True}),
        ("WebFetch", {"url": "http://example.com"}),
        ("mcp__other__run", {}),
    ],
)
def test_refused(directory, name, arguments):
    arguments = {
        key: value.replace("{directory}", str(directory)) if isinstance(value, str) else value
        for key, value in arguments.items()
    }
    assert refusal(name, arguments, offered=OFFERED, directory=directory)


def test_link_that_leads_to_itself_stays_inside(directory):
    assert refusal("Read", {"file_path": "loop/x"}, offered=OFFERED, directory=directory) is None
