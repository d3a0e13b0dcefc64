"""Mounts of a workspace: refused ones, globs, names, many files, large files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_server import Server
from fixtures_workspace import adapter_for, scenario_prompt, scripted_server, write_files
from permissions import without_dac_override

from weakincentives.adapters.openai import ContainerConfig, OpenAIContainerWorkspaceSection
from weakincentives.errors import WorkspaceBudgetError, WorkspaceError, WorkspaceSecurityError
from weakincentives.runtime import Session, TransferProgress
from weakincentives.tools import HostMount

LARGE = 200_000_000
SCENARIOS = {
    "large": ["import os; f = open('/mnt/data/data/large.bin', 'rb'); print(os.path.getsize(f.name), f.read(3))"],
    "count": ["import os; print(sum(len(names) for _, _, names in os.walk('/mnt/data')))"],
    "names": ["import os; print(sorted(os.listdir('/mnt/data/names')))"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with scripted_server(tmp_path_factory.mktemp("antwort"), SCENARIOS) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as sdk:
        yield sdk


@pytest.fixture
def make(client, tmp_path) -> Any:
    """Creates workspaces with one allowed root; cleans them up, and checks that no container is left."""
    made: list[OpenAIContainerWorkspaceSection] = []

    def make(*mounts: HostMount, roots: tuple[Path, ...] = (tmp_path / "root",), archives: bool = True) -> Any:
        section = OpenAIContainerWorkspaceSection(
            session=Session(),
            mounts=mounts,
            allowed_host_roots=roots,
            container_config=ContainerConfig(memory_limit="1g", archives=archives),
            client=client,
        )
        made.append(section)
        return section

    (tmp_path / "root").mkdir()
    yield make
    for section in made:
        section.cleanup()
    assert list(client.containers.list()) == []


def refused(server: Server, workspace: OpenAIContainerWorkspaceSection, kind: type[Exception], match: str) -> None:
    """Every use is refused in the same way, and nothing is created."""
    uses: list[Callable[[], object]] = [
        lambda: workspace.temp_dir,
        lambda: workspace.mount_previews,
        workspace.filesystem.list_dir,
        workspace.filesystem.ensure_container,
        lambda: adapter_for(server).evaluate(scenario_prompt("count", workspace), session=workspace.session),
    ]
    for use in uses:
        with pytest.raises(kind, match=match):
            use()
    assert workspace.container_id is None
    with server.client() as client:
        assert list(client.containers.list()) == []
    assert workspace.session[TransferProgress].all() == ()


# ── refused mounts ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_mounts_outside_the_roots_are_refused_at_construction(make, tmp_path):
    write_files(tmp_path, {"outside/secret": "x", "root/inside": "y"})
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    for host_path in (tmp_path / "outside", tmp_path / "root/../outside/secret", tmp_path / "root/link", "/etc/passwd"):
        with pytest.raises(WorkspaceSecurityError, match="outside of the allowed host roots"):
            make(HostMount(host_path))
    with pytest.raises(WorkspaceSecurityError, match="allowed_host_roots is empty"):
        make(HostMount(tmp_path / "root"), roots=())
    with pytest.raises(WorkspaceSecurityError, match="mount_path"):
        HostMount(tmp_path / "root", "../up")


def test_no_roots_needed_without_mounts(make):
    assert make(roots=()).filesystem.list_dir() == []


def test_escaping_link_is_refused_if_followed_and_skipped_otherwise(server, make, tmp_path):
    write_files(tmp_path, {"outside/secret": "x", "root/data/file": "y"})
    (tmp_path / "root/data/out").symlink_to(tmp_path / "outside/secret")
    (tmp_path / "root/data/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "root/data/within").symlink_to("file")

    workspace = make(HostMount(tmp_path / "root/data", follow_symlinks=True))
    refused(server, workspace, WorkspaceSecurityError, "out")
    assert make(HostMount(tmp_path / "root/data")).filesystem.glob("**") == ["data/file"]


def test_max_bytes_is_checked_before_any_request(server, make, tmp_path):
    write_files(tmp_path / "root/data", {"small": b"1", "large": b"2" * 900, "larger": b"3" * 1000})
    workspace = make(HostMount(tmp_path / "root/data", max_bytes=1900))

    refused(server, workspace, WorkspaceBudgetError, r"larger \(1,000\), large \(900\), small \(1\)")
    assert len(make(HostMount(tmp_path / "root/data", max_bytes=1901)).filesystem.list_dir("data")) == 3


def test_one_invalid_mount_refuses_all(server, make, tmp_path):
    write_files(tmp_path / "root", {"good/file": "x"})
    workspace = make(HostMount(tmp_path / "root/good"), HostMount(tmp_path / "root/missing"))

    refused(server, workspace, WorkspaceError, "does not exist")


def test_unreadable_file_is_named(server, make, tmp_path):
    write_files(tmp_path / "root/data", {"open": "x", "secret": "y"})
    (tmp_path / "root/data/secret").chmod(0)
    with without_dac_override():
        refused(server, make(HostMount(tmp_path / "root/data")), WorkspaceError, "cannot read .*secret")


# ── transferred files ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("archives", [True, False], ids=["archive", "plain"])
def test_globs_match_at_every_depth(make, tmp_path, archives):
    kept = ("a.py", "src/b.py", "src/deep/er/c.py", "src/build.py")
    dropped = (".git/config", "src/.git/x", "a.pyc", "src/deep/b.pyc", "src/__pycache__/c.py", "build/x.py", "notes.md")
    write_files(tmp_path / "root/data", dict.fromkeys((*kept, *dropped), "x"))
    mount = HostMount(
        tmp_path / "root/data",
        "code/here",
        include_glob=("*.py", "*.pyc", "config", "x"),
        exclude_glob=(".git/*", "*.pyc", "**/__pycache__/**", "build/"),
    )

    assert make(mount, archives=archives).filesystem.glob("**") == sorted(f"code/here/{path}" for path in kept)


@pytest.mark.parametrize("archives", [True, False], ids=["archive", "plain"])
def test_unicode_names_are_uploaded_and_downloaded(server, make, tmp_path, archives):
    names = [
        "日本語.txt",
        "naïve café.md",
        "αβγ",
        "Ελλάδα 🎈",
        "مرحبا",
        "-rf",
        " lead",
        "quo'te",
        "x" * 250,
        "a%20b",
        "#1;x",
    ]
    odd = ['dou"ble', "new\nline", "tab\t", "turn\u202eed", "dou%22ble"]
    write_files(tmp_path / "root/names", {name: name for name in (*names, *odd)})
    workspace = make(HostMount(tmp_path / "root/names"), archives=archives)
    answer = adapter_for(server).evaluate(scenario_prompt("names", workspace), session=workspace.session).text

    assert all(ascii(name)[1:-1] in ascii(answer) or name in answer for name in names)
    assert workspace.filesystem.list_dir("names") == sorted((*names, *odd))
    assert {name: workspace.filesystem.read_text(f"names/{name}") for name in odd} == {name: name for name in odd}
    relocated = workspace.filesystem.relocated()
    assert set(relocated) == {f"names/{name}" for name in odd if name != "dou%22ble"} | (
        {"names/dou%22ble"} & relocated.keys()
    )
    assert len(set(relocated.values()) | {f"names/{name}" for name in names}) == len(relocated) + len(names)
    workspace.filesystem.download_all(tmp_path / "back")
    assert {path.name: path.read_text() for path in (tmp_path / "back/names").iterdir()} == {
        name: name for name in (*names, *odd)
    }


def test_ten_thousand_small_files(server, make, tmp_path):
    files = {f"d{number % 100}/f{number}.txt": str(number) for number in range(10_000)}
    workspace = make(HostMount(write_files(tmp_path / "root/data", files)))
    text = scenario_prompt("count", workspace).render().text

    assert "`/mnt/data/data`: 10,000 files" in text
    assert "… and 80 more" in text
    assert len(text.splitlines()) < 60
    assert (
        adapter_for(server).evaluate(scenario_prompt("count", workspace), session=workspace.session).text == "10000\n"
    )
    assert workspace.filesystem.read_text("data/d99/f9999.txt") == "9999"
    assert len(workspace.filesystem.list_dir("data/d7")) == 100
    synced = workspace.sync()
    assert (synced.unchanged, synced.added, synced.changed, synced.removed) == (10_000, (), (), ())


@pytest.mark.parametrize("archives", [True, False], ids=["archive", "plain"])
def test_one_file_of_200_megabytes(server, make, tmp_path, archives):
    (tmp_path / "root/data").mkdir()
    with (tmp_path / "root/data/large.bin").open("wb") as file:
        file.write(b"big")
        file.truncate(LARGE)
    workspace = make(HostMount(tmp_path / "root/data"), archives=archives)
    answer = adapter_for(server).evaluate(scenario_prompt("large", workspace), session=workspace.session)

    assert answer.text == f"{LARGE} b'big'\n"
    up = workspace.session[TransferProgress].all()
    assert (up[-1].files, up[-1].bytes) == (1, LARGE)
    assert [event.bytes for event in up] == sorted(event.bytes for event in up)
    (workspace.temp_dir / "data/large.bin").unlink()
    synced = workspace.sync()
    assert (synced.added, synced.bytes) == (("data/large.bin",), LARGE)
    assert (workspace.temp_dir / "data/large.bin").stat().st_size == LARGE
