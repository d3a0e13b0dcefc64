"""Packages: what may be asked for, and a real installation from an index on this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from antwort.sandbox import packages, probe, shelf
from antwort.sandbox.errors import BadRequirement
from antwort.sandbox.packages import check
from antwort.sandbox.stack import here

OPTIONS = ["--index-url=http://x", "-r x", "x==1 --hash=a", "a\n--pre"]
ARCHIVES = ["x.whl", "x.tar.gz", "X.ZIP"]
PLACES = ["git+ssh://g@h/x", "./x", "/x", "../x", "x @ http://h/x.whl", "file:x"]
OTHERS = ["x; python_version > '3'", "a b", "", "é"]


@pytest.mark.parametrize("line", [*OPTIONS, *PLACES, *ARCHIVES, *OTHERS])
def test_what_is_not_a_name_with_versions_is_refused(line):
    with pytest.raises(BadRequirement):
        check([line])


def test_names_with_versions_and_extras_come_in_one_order():
    assert check(["rich>=13,<15", "a[b]==1.0", "rich>=13,<15"]) == ["a[b]==1.0", "rich<15,>=13"]


@pytest.fixture
def index(package_index):
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    return package_index


@pytest.mark.parametrize("identity", ["user", "root"])
def test_a_package_is_installed_cached_and_hidden_from_others(serve, identities, identity, index):
    if identity not in identities:
        pytest.skip("this needs root")
    with serve(identity, python_index=index.url, modules="json") as running:
        client = running.client
        code = "import tiny_thing, os; print(tiny_thing.ANSWER, tiny_thing.__file__, os.listdir('/opt/packages'))"
        for _ in range(2):
            seen = client.execute(code, requirements=["tiny-thing==1.0"])
            assert seen["stdout"] == "42 /opt/site/tiny_thing.py []\n", seen
        assert len(list((running.state / "packages").glob("[!.]*"))) == 1
        assert "No module named" in client.execute("import tiny_thing")["stderr"]
        session = client.session(requirements=["tiny-thing"])
        assert client.run(session, "import tiny_thing; tiny_thing.ANSWER")["result"] == "42"
        assert client.run(session, "open('/opt/site/tiny_thing.py', 'a')")["status"] == "error"
        failed = client.execute("1", requirements=["tiny-thing==2.0"])
        assert failed["stderr"].startswith("package installation failed: ")
        assert str(running.state) not in failed["stderr"]


def test_who_has_more_time_does_not_fail_with_who_has_less(serve, index):
    """Both wait for one installation, which the index holds up for longer than the first can wait."""
    with serve("user", python_index=index.held, modules="json") as running, ThreadPoolExecutor(2) as threads:
        wanted = {"code": "import tiny_thing", "requirements": ["tiny-thing"]}
        first = threads.submit(running.client.execute, timeout_seconds=1, **wanted)
        second = threads.submit(running.client.execute, timeout_seconds=30, **wanted)
        assert first.result()["exit_code"] == -1
        index.going_on.set()
        assert second.result()["status"] == "success"
        assert index.asked.count("/held/tiny-thing/") == 1


def test_what_a_killed_server_left_half_installed_is_removed_and_what_another_is_at_is_not(tmp_path):
    for name in (".left", ".held", "installed"):
        (tmp_path / name / "out").mkdir(parents=True)
    with shelf.held(tmp_path / ".held"):
        packages.Packages(tmp_path, probe(), here(()), index=None)
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".annexes-")}
        assert names == {".held", "installed"}
