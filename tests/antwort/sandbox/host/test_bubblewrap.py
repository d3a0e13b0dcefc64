"""What bubblewrap is told: no path of the host inside, nothing writable, nothing inherited."""

from __future__ import annotations

import pytest

from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.probe import UIDS
from antwort.sandbox.pool import preload as stack

WALLS = frozenset({"namespaces", "landlock", "seccomp"})


@pytest.fixture
def words():
    launch = bubblewrap.zygote(stack.here(()), 9, WALLS, None, None)
    yield launch.argv
    launch.close()


def test_every_namespace_is_new_and_nothing_is_kept(words):
    for word in ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop"):
        assert word in words
    assert "--share-net" not in words
    assert words[words.index("--cap-drop") + 1] == "ALL"


def test_nothing_of_the_host_is_writable(words):
    assert "--bind" not in words
    assert "--dev-bind" not in words
    assert words[words.index("--remount-ro") + 1] == "/"


def test_what_is_bound_appears_under_a_neutral_name(words):
    targets = [words[i + 2] for i, word in enumerate(words) if word == "--ro-bind"]
    neutral = ("/usr", "/bin", "/sbin", "/lib", "/etc/", "/opt/")
    assert targets
    assert all(target.startswith(neutral) for target in targets)


def test_as_root_another_user_is_staged_first():
    launch = bubblewrap.zygote(stack.here(()), 9, WALLS, None, UIDS[0])
    launch.close()
    assert launch.argv[1:3] == ["-I", "-S"]
    assert str(UIDS[0]) in launch.argv[-1]
