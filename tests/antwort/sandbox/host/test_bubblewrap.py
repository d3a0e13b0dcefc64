"""Bubblewrap arguments: no path of the host inside, nothing writable, nothing inherited."""

from __future__ import annotations

import pytest

from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.probe import UIDS
from antwort.sandbox.pool import preload as stack

LAYERS = frozenset({"namespaces", "landlock", "seccomp"})


@pytest.fixture
def arguments():
    launch = bubblewrap.zygote(stack.current_stack(()), 9, LAYERS, None, None)
    yield launch.argv
    launch.close()


def test_all_namespaces_are_new_and_capabilities_and_environment_are_dropped(arguments):
    for argument in ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop"):
        assert argument in arguments
    assert "--share-net" not in arguments
    assert arguments[arguments.index("--cap-drop") + 1] == "ALL"


def test_no_mount_of_the_host_is_writable(arguments):
    assert "--bind" not in arguments
    assert "--dev-bind" not in arguments
    assert arguments[arguments.index("--remount-ro") + 1] == "/"


def test_bind_mounts_have_neutral_names(arguments):
    targets = [arguments[i + 2] for i, argument in enumerate(arguments) if argument == "--ro-bind"]
    neutral = ("/usr", "/bin", "/sbin", "/lib", "/etc/", "/opt/")
    assert targets
    assert all(target.startswith(neutral) for target in targets)


def test_as_root_the_command_drops_root_first():
    launch = bubblewrap.zygote(stack.current_stack(()), 9, LAYERS, None, UIDS[0])
    launch.close()
    assert launch.argv[1:3] == ["-I", "-S"]
    assert str(UIDS[0]) in launch.argv[-1]
