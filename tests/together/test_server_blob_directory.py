"""One directory of file contents and two databases: which servers and commands refuse it, and what stays readable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from fixtures_server import ROOT, run_server

CONTENT = b"content of a file"
SQLITE: dict[str, Any] = {}


@pytest.fixture
def postgres(tmp_path, postgres_server) -> dict[str, Any]:  # noqa: F811 - a fixture
    """The setting `storage` for a schema of its own, with the default directory."""
    return {"url": schema_url(postgres_server, tmp_path)}


def antwort(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the `antwort.yaml` of the directory."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")}
    return subprocess.run(
        [sys.executable, "-m", "antwort", *arguments],
        cwd=directory,
        env={**plain, "PYTHONPATH": str(ROOT / "src"), "ANTWORT_CONFIG": "antwort.yaml"},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def configure(directory: Path, storage: dict[str, Any]) -> None:
    """Change the setting `storage` of the `antwort.yaml` that a server has used."""
    file = directory / "antwort.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump({**settings, "storage": storage}), encoding="utf-8")


def refusal(directory: Path, storage: dict[str, Any]) -> str:
    """The error of a server that does not start with this `storage`."""
    configure(directory, storage)
    ended = antwort(directory, "serve")
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


def upload(directory: Path, storage: dict[str, Any]) -> str:
    """The id of a file that a server has stored, and that is older than `storage.orphan_age`."""
    with run_server(directory, {"storage": storage}) as server:
        identifier: str = server.client().files.create(file=("a.bin", CONTENT), purpose="user_data").id
    old = time.time() - 200_000.0
    for path in blobs(directory):
        os.utime(path, (old, old))
    return identifier


def blobs(directory: Path) -> list[Path]:
    return [path for path in (directory / ".antwort" / "blobs").iterdir() if len(path.name) == 32]


def download(directory: Path, storage: dict[str, Any], identifier: str) -> bytes:
    with run_server(directory, {"storage": storage}) as server:
        content: bytes = server.client().files.content(identifier).read()
    return content


@pytest.mark.parametrize("is_first_postgres", [True, False])
def test_a_server_on_the_other_database_refuses_the_directory(tmp_path, postgres, is_first_postgres):
    first, other = (postgres, SQLITE) if is_first_postgres else (SQLITE, postgres)
    identifier = upload(tmp_path, first)
    for _ in range(2):  # also when the other database has been created
        assert "holds the files of another database. Set `storage.blobs` to another" in refusal(tmp_path, other)
    assert download(tmp_path, first, identifier) == CONTENT


def test_a_directory_of_a_version_without_marks_is_that_of_the_database_that_knows_it(tmp_path, postgres):
    identifier = upload(tmp_path, SQLITE)
    mark = tmp_path / ".antwort" / "blobs" / "antwort-store"
    mark.unlink()
    for other in (postgres, {"url": "sqlite:///new/antwort.db"}, postgres):
        assert "has files that this database does not know" in refusal(tmp_path, other)
        assert not mark.exists()
    assert download(tmp_path, SQLITE, identifier) == CONTENT
    assert "holds the files of another database" in refusal(tmp_path, postgres)


def test_a_directory_without_marks_of_a_killed_upload_is_taken_over(tmp_path):
    directory = tmp_path / ".antwort" / "blobs"
    directory.mkdir(parents=True)
    (directory / ("a" * 32 + ".part")).write_bytes(b"begin")
    with run_server(tmp_path):
        assert (directory / "antwort-store").exists()


def test_a_backup_from_before_the_mark_is_adopted_without_it(tmp_path, postgres):
    """Its database gets another identity, and knows its contents."""
    identifier = upload(tmp_path, postgres)
    with psycopg.connect(postgres["url"]) as connection:
        connection.execute("UPDATE store_identity SET id = 'other'")
    assert "or, if that database does not exist any more, delete" in refusal(tmp_path, postgres)
    (tmp_path / ".antwort" / "blobs" / "antwort-store").unlink()
    assert download(tmp_path, postgres, identifier) == CONTENT


def test_an_import_refuses_the_directory_of_the_store_that_was_exported(tmp_path, postgres):
    identifier = upload(tmp_path, SQLITE)
    assert antwort(tmp_path, "export", "export.tar").returncode == 0
    configure(tmp_path, postgres)
    refused = antwort(tmp_path, "import", "export.tar")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "holds the files of another database" in refused.stderr
    moved = {**postgres, "blobs": "contents"}
    configure(tmp_path, moved)
    assert antwort(tmp_path, "import", "export.tar").returncode == 0
    assert download(tmp_path, moved, identifier) == CONTENT
    assert download(tmp_path, SQLITE, identifier) == CONTENT


@pytest.mark.parametrize("is_postgres", [True, False])
def test_an_export_without_the_content_of_a_file_is_an_error_that_names_it(tmp_path, postgres, is_postgres):
    storage = postgres if is_postgres else SQLITE
    lost = upload(tmp_path, storage)
    blobs(tmp_path)[0].unlink()
    with run_server(tmp_path, {"storage": storage}) as server:
        files = server.client().files
        files.create(file=("b.bin", CONTENT), purpose="user_data")
        failed = antwort(tmp_path, "export", "export.tar")
        assert failed.returncode == 1, failed
        assert f"The contents of 1 files are missing in `storage.blobs`: {lost}. " in failed.stderr
        assert not [*tmp_path.glob("export.tar*")]
        files.delete(lost)
        exported = antwort(tmp_path, "export", "export.tar")
    assert exported.returncode == 0, exported
    assert "1 files" in exported.stderr


def test_an_export_does_not_write_into_the_file_of_another(tmp_path):
    upload(tmp_path, SQLITE)
    partial = tmp_path / "export.tar.partial"
    partial.write_bytes(b"of another export")
    refused = antwort(tmp_path, "export", "export.tar")
    assert refused.returncode == 1, refused
    assert "export.tar.partial exists: another export to export.tar is running, or one was killed." in refused.stderr
    assert partial.read_bytes() == b"of another export"
    partial.unlink()
    assert antwort(tmp_path, "export", "export.tar").returncode == 0
    assert not partial.exists()


def test_a_directory_without_hard_links_is_shared(tmp_path, postgres):
    """`os.link` fails in the servers as on SMB and FUSE file systems."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef refuse(*_, **__): raise PermissionError(1, 'Operation not permitted')\nos.link = refuse\n",
        encoding="utf-8",
    )
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    with (
        run_server(tmp_path, {"storage": postgres}, environment=variables) as server,
        run_server(tmp_path, {"storage": postgres}, environment=variables) as other,
    ):
        identifier = server.client().files.create(file=("a.bin", CONTENT), purpose="user_data").id
        assert other.client().files.content(identifier).read() == CONTENT
    assert len([*(tmp_path / ".antwort" / "blobs").glob("antwort-store*")]) == 1
