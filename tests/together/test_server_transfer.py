"""`antwort migrate`, `export` and `import`: what servers show before and after, kills, and two commands at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from fixtures_object_store import CREDENTIALS, s3_server  # noqa: F401 - a fixture
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from fixtures_server import ROOT, Server, create_key, run_server
from waiting import wait_until

pytestmark = pytest.mark.long

TENANTS = {"one": "tenant-a", "two": "tenant-a", "other": "tenant-b"}
CONTENT = Random(2).randbytes(9_000_001)  # noqa: S311 - not cryptographic


def antwort(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a directory with an `antwort.yaml`, or without one."""
    return subprocess.run(
        command(*arguments), cwd=directory, env=environment(directory, variables), capture_output=True, check=False
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "antwort", *arguments]


def environment(directory: Path, variables: dict[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")}
    config = {"ANTWORT_CONFIG": "antwort.yaml"} if (directory / "antwort.yaml").exists() else {}
    return {**plain, "PYTHONPATH": str(ROOT / "src"), **config, **variables}


@contextmanager
def half_imported(
    directory: Path, data: bytes, variables: dict[str, str], stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """An import that has read half of its input."""
    with subprocess.Popen(
        command("import", "-"),
        cwd=directory,
        env=environment(directory, variables),
        stdin=subprocess.PIPE,
        stderr=stderr,
    ) as importing:
        assert importing.stdin is not None
        importing.stdin.write(data[: len(data) // 2])
        importing.stdin.flush()
        yield importing


def check(done: subprocess.CompletedProcess[bytes]) -> str:
    """The standard error of a command that succeeded."""
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def error(done: subprocess.CompletedProcess[bytes]) -> str:
    """The error of a command that failed, in one line."""
    assert done.returncode == 1, done
    text = done.stderr.decode()
    assert text.startswith("Error: ")
    assert text.count("\n") == 1
    return text


# ── moving a store ───────────────────────────────────────────────────────────────────────────────────────────────────


def fill(server: Server, keys: dict[str, str]) -> dict[str, Any]:
    """Objects of three keys of two tenants. Returns the ids to look at, by key."""
    made: dict[str, Any] = {}
    for name, key in keys.items():
        client = server.client(key)
        first = client.responses.create(model="scripted", input=f"first of {name}", metadata={"a": "ü"})
        second = client.responses.create(model="scripted", input="second", previous_response_id=first.id)
        background = client.responses.create(model="scripted", input="slowly", background=True)
        wait_until(lambda one=background, sdk=client: sdk.responses.retrieve(one.id).status == "completed")
        conversation = client.conversations.create(
            items=[{"role": "user", "content": f"{number}"} for number in range(5)]
        )
        client.responses.create(model="scripted", input="more", conversation=conversation.id)
        for number in range(3):
            client.files.create(file=(f"{name} {number}.bin", CONTENT[: 4_000_000 * number]), purpose="user_data")
        made[name] = {"responses": [first.id, second.id, background.id], "conversations": [conversation.id]}
    return made


def shown(server: Server, keys: dict[str, str], made: dict[str, Any]) -> dict[str, Any]:
    """What the API shows of these objects, to each of the keys: to other keys of the tenant too, to others nothing."""
    found: dict[str, Any] = {}
    stream = "stream=true&include_obfuscation=false"
    for name, key in keys.items():
        with server.http(headers={"authorization": f"Bearer {key}"}) as http:
            paths = ["/v1/files?order=asc", "/v1/files?limit=2"]
            for ids in made.values():
                for one in ids["responses"]:
                    paths += [f"/v1/responses/{one}", f"/v1/responses/{one}/input_items?order=asc"]
                    paths += [f"/v1/responses/{one}?{stream}", f"/v1/responses/{one}?{stream}&starting_after=3"]
                paths += [f"/v1/conversations/{one}" for one in ids["conversations"]]
                paths += [f"/v1/conversations/{one}/items?order=asc" for one in ids["conversations"]]
            for path in paths:
                answer = http.get(path)
                found[f"{name} {path}"] = (answer.status_code, answer.content)
            for file in http.get("/v1/files").json()["data"]:
                found[f"{name} {file['id']}"] = http.get(f"/v1/files/{file['id']}/content").content
    return found


def continued(server: Server, keys: dict[str, str], made: dict[str, Any]) -> list[str]:
    """The input that a continued chain has: that of all responses before it."""
    client = server.client(keys["one"])
    response = client.responses.create(model="scripted", input="x", previous_response_id=made["one"]["responses"][1])
    items = client.responses.input_items.list(response.id).data
    return [item.content[0].text for item in items]


def test_a_store_that_moves_to_postgres_and_back_shows_the_same(tmp_path, postgres_server):  # noqa: F811 - a fixture
    folders = [tmp_path / name for name in ("sqlite", "postgres", "again")]
    keys = {name: create_key(folders[0], name, "--tenant", tenant) for name, tenant in TENANTS.items()}
    configs: list[dict[str, Any]] = [{"auth": {"keys_file": str(folders[0] / "keys.json")}} for _ in folders]
    configs[1]["storage"] = {"url": schema_url(postgres_server, tmp_path)}
    with run_server(folders[0], configs[0]) as server:
        made = fill(server, keys)
        before = shown(server, keys, made)
        text = check(antwort(folders[0], "export", str(tmp_path / "running.tar")))  # also while it runs
    assert "Exported 12 responses, 3 conversations, 9 files, 0 containers, 36,000,000 bytes" in text
    assert before["two /v1/files?order=asc"] == before["one /v1/files?order=asc"]
    assert before["other /v1/files?order=asc"] != before["one /v1/files?order=asc"]

    exports = [tmp_path / "running.tar", tmp_path / "postgres.tar"]
    for folder, config, export in zip(folders[1:], configs[1:], exports, strict=True):
        folder.mkdir()
        with run_server(folder, {**config, "server": {"port": 0}}) as server:  # writes the configuration
            busy = antwort(folder, "import", str(export))
            assert "is in use by another antwort" in error(busy)
        check(antwort(folder, "import", str(export)))
        with run_server(folder, config) as server:
            assert shown(server, keys, made) == before
            if folder is folders[1]:
                check(antwort(folder, "export", str(exports[1])))
            assert continued(server, keys, made) == ["x"]
            assert "already" not in server.read_log()
        assert "The store is not empty" in error(antwort(folder, "import", str(export)))


def test_an_export_goes_through_pipes_and_between_kinds_of_blobs(tmp_path, s3_server):  # noqa: F811 - a fixture
    bucket = s3_server.bucket()
    first, second = tmp_path / "1", tmp_path / "2"
    keys = {"local": "none"}
    with run_server(first) as server:
        made = fill(server, keys)
        before = shown(server, keys, made)
    exported = antwort(first, "export", "-")
    check(exported)
    store = {"blobs": f"s3://{bucket}/x", "object_store": {"endpoint": s3_server.url}}
    second.mkdir()
    with run_server(second, {"storage": store}, environment=CREDENTIALS):
        pass
    with subprocess.Popen(
        command("import", "-"), cwd=second, env=environment(second, CREDENTIALS), stdin=subprocess.PIPE
    ) as running:
        running.communicate(exported.stdout)
    assert running.returncode == 0
    with run_server(second, {"storage": store}, environment=CREDENTIALS) as server:
        assert shown(server, keys, made) == before


def test_a_damaged_file_changes_nothing_and_an_existing_one_is_not_overwritten(tmp_path):
    with run_server(tmp_path / "1") as server:
        server.client().files.create(file=("a.bin", CONTENT), purpose="user_data")
    file = tmp_path / "export.tar"
    check(antwort(tmp_path / "1", "export", str(file)))
    assert file.stat().st_mode & 0o777 == 0o600
    assert f"{file} exists" in error(antwort(tmp_path / "1", "export", str(file)))
    data = file.read_bytes()
    (tmp_path / "2").mkdir()
    for damaged in (data[:-3000], data[:5_000_000], data[:5_000_000] + b"x" + data[5_000_001:], b"other"):
        (tmp_path / "damaged.tar").write_bytes(damaged)
        text = error(antwort(tmp_path / "2", "import", str(tmp_path / "damaged.tar")))
        assert "is not a complete export of antwort" in text
        assert "Nothing was imported." in text
    assert list((tmp_path / "2").iterdir()) == []


WITH_PEAK = """
import sys
from antwort.cli import main
main(sys.argv[1:], standalone_mode=False)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(directory: Path, *arguments: str) -> int:
    """The largest resident memory of a command, in bytes."""
    run = [sys.executable, "-c", WITH_PEAK, *arguments]
    done = subprocess.run(run, cwd=directory, env=environment(directory, {}), capture_output=True, check=True)
    return int(done.stdout.split()[1]) * 1024


@pytest.mark.parametrize("is_postgres", [False, True])
def test_the_memory_of_an_export_and_an_import_does_not_depend_on_the_number_of_large_rows(
    tmp_path,
    postgres_server,  # noqa: F811 - a fixture
    is_postgres,
):
    def storage(directory: Path) -> dict[str, Any]:
        return {"url": schema_url(postgres_server, directory)} if is_postgres else {}

    size, first = 8_000_000, tmp_path / "1"
    peaks: dict[str, list[int]] = {"export": [], "import": []}
    for number, count in enumerate((4, 8)):
        file, second = tmp_path / f"{number}.tar", tmp_path / f"to {number}"
        with run_server(first, {"storage": storage(first)}) as server:
            for _ in range(count):
                server.client().responses.create(model="scripted", input="refuse" + "x" * size)
            peaks["export"].append(peak(first, "export", str(file)))
        with run_server(second, {"storage": storage(second)}):
            pass
        peaks["import"].append(peak(second, "import", str(file)))
    for name, (few, many) in peaks.items():
        assert many - few < 2 * size, name


@pytest.mark.parametrize("is_postgres", [False, True])
def test_an_import_that_is_killed_changes_nothing(tmp_path, postgres_server, is_postgres):  # noqa: F811 - a fixture
    with run_server(tmp_path / "1") as server:
        for number in range(4):
            server.client().files.create(file=(f"{number}.bin", CONTENT), purpose="user_data")
    data = antwort(tmp_path / "1", "export", "-").stdout
    second = tmp_path / "2"
    second.mkdir()
    storage: dict[str, Any] = {"sweep_interval": 0.2, "orphan_age": 2.0}
    if is_postgres:
        storage["url"] = schema_url(postgres_server, tmp_path)
    with run_server(second, {"storage": storage}):
        pass
    blobs = second / ".antwort" / "blobs"

    def names() -> set[str]:
        return {path.name for path in blobs.iterdir()} - {"antwort-store"}

    with half_imported(second, data, {}) as one:
        wait_until(names)
        one.kill()
        one.wait(30)
        assert one.stdin is not None
        with suppress(BrokenPipeError):
            one.stdin.close()
    with run_server(second, {"storage": storage}) as server:
        assert server.client().files.list().data == []
        wait_until(lambda: not names())
    (tmp_path / "export.tar").write_bytes(data)
    check(antwort(second, "import", str(tmp_path / "export.tar")))


@pytest.mark.parametrize("is_postgres", [False, True])
def test_a_server_that_starts_during_an_import_refuses_with_its_name(tmp_path, postgres_server, is_postgres):  # noqa: F811 - a fixture
    with run_server(tmp_path / "1") as server:
        for number in range(2):
            server.client().files.create(file=(f"{number}.bin", CONTENT), purpose="user_data")
    file = tmp_path / "export.tar"
    check(antwort(tmp_path / "1", "export", str(file)))
    data, second = file.read_bytes(), tmp_path / "2"
    storage = {"url": schema_url(postgres_server, tmp_path)} if is_postgres else {}
    with run_server(second, {"storage": storage}):
        pass
    blobs = second / ".antwort" / "blobs"
    with half_imported(second, data, {}) as importing:
        wait_until(lambda: len([*blobs.iterdir()]) > 1)  # beside the mark
        refused = error(antwort(second, "serve"))
        assert "is in use by `antwort import`" in refused
        assert "Wait" in refused
        assert is_postgres or f"(process {importing.pid})" in refused
        assert "is in use by" in error(antwort(second, "import", "--merge", str(file)))
        importing.communicate(data[len(data) // 2 :])
    assert importing.returncode == 0
    with run_server(second, {"storage": storage}) as server:
        assert len(server.client().files.list().data) == 2


@pytest.mark.parametrize("is_postgres", [False, True])
def test_an_import_that_is_refused_is_one_line_and_changes_nothing(tmp_path, postgres_server, is_postgres):  # noqa: F811 - a fixture
    storage = {"url": schema_url(postgres_server, tmp_path)} if is_postgres else {}
    with run_server(tmp_path, {"storage": storage}) as server:
        conversation = server.client().conversations.create(metadata={"a": "b"})
    file = tmp_path / "export.tar"
    check(antwort(tmp_path, "export", str(file)))
    assert "The store is not empty" in error(antwort(tmp_path, "import", str(file)))
    assert "already has an object" in error(antwort(tmp_path, "import", "--merge", str(file)))
    good, broken = file.read_bytes(), tmp_path / "broken.tar"
    for found, altered, reason in (
        (b'"format":1', b'"format":2', "Install the version of antwort that wrote it"),
        (b'"tenant"', b'"tenan\xff"', "its header is not valid"),
        (b'"sha256":"', b'"sha256":\xff', "its end is not valid"),
        (b'{\\"a\\":', b'{\\"c\\":', "it was altered"),
    ):
        assert found in good
        broken.write_bytes(good.replace(found, altered))
        assert reason in error(antwort(tmp_path, "import", "--merge", str(broken)))
    assert "No such file" in error(antwort(tmp_path, "import", str(tmp_path / "missing.tar")))
    with run_server(tmp_path, {"storage": storage}) as server:
        assert server.client().conversations.retrieve(conversation.id).metadata == {"a": "b"}


def test_a_database_that_ends_during_an_import_is_one_line_that_says_so(tmp_path, postgres_server):  # noqa: F811 - a fixture
    with run_server(tmp_path / "1") as server:
        server.client().responses.create(model="scripted", input="refuse" + "x" * 3_000_000)
    data = antwort(tmp_path / "1", "export", "-").stdout
    second, url = tmp_path / "2", schema_url(postgres_server, tmp_path)
    second.mkdir()
    with (
        half_imported(second, data, {"ANTWORT_STORAGE_URL": url}, stderr=subprocess.PIPE) as importing,
        psycopg.connect(postgres_server, autocommit=True) as connection,
    ):
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'antwort-maintenance'"
            " AND state = 'idle in transaction' AND query LIKE 'INSERT %'"
        )
        wait_until(lambda: connection.execute(end).fetchall())
        _, stderr = importing.communicate(data[len(data) // 2 :])
    assert importing.returncode == 1
    assert stderr.decode().startswith("Error: The store failed: ")
    assert stderr.count(b"\n") == 1


# ── migrate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path, postgres_server) -> tuple[Path, str]:  # noqa: F811 - a fixture
    """A directory, and the URL of a store that does not exist yet."""
    return tmp_path, schema_url(postgres_server, tmp_path) if request.param == "postgres" else "sqlite:///a/antwort.db"


def test_migrate_creates_the_schema_and_check_only_tells(place):
    directory, url = place
    store = {"ANTWORT_STORAGE_URL": url}
    before = antwort(directory, "migrate", "--check", **store)
    created = antwort(directory, "migrate", **store)
    again = antwort(directory, "migrate", **store)
    after = antwort(directory, "migrate", "--check", **store)

    assert [done.returncode for done in (before, created, again, after)] == [3, 0, 0, 0]
    assert b"there is no schema, and this antwort needs version" in before.stdout
    assert b"migrated from nothing to version" in created.stdout
    assert b"the newest" in again.stdout
    assert b"the newest" in after.stdout


def test_two_migrations_at_once_run_each_step_once(postgres_server, tmp_path):  # noqa: F811 - a fixture
    url = schema_url(postgres_server, tmp_path)
    running = [
        subprocess.Popen(
            command("migrate"),
            cwd=tmp_path,
            env=environment(tmp_path, {"ANTWORT_STORAGE_URL": url}),
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    texts = [one.communicate(timeout=60)[0] for one in running]

    assert [one.returncode for one in running] == [0, 0, 0]
    assert sorted(b"migrated from nothing" in text for text in texts) == [False, False, True]
    with psycopg.connect(url) as connection:
        versions = connection.execute("SELECT version FROM antwort_migrations ORDER BY version").fetchall()
    assert versions == [(number + 1,) for number in range(len(versions))]


def test_a_newer_schema_is_an_error_that_says_what_to_do(place):
    directory, url = place
    store = {"ANTWORT_STORAGE_URL": url}
    check(antwort(directory, "migrate", **store))
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(directory / "a" / "antwort.db")) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO antwort_migrations (version) VALUES (99)")
    for arguments in (["migrate"], ["migrate", "--check"], ["export", "x.tar"]):
        text = error(antwort(directory, *arguments, **store))
        assert "has" in text
        assert "version 99" in text
        assert "or a newer one; or set `storage.url` to another" in text
    assert not (directory / "x.tar").exists()


def test_an_old_database_in_use_is_not_migrated(tmp_path):
    with run_server(tmp_path) as server:
        with closing(sqlite3.connect(tmp_path / ".antwort" / "antwort.db")) as database:
            database.execute("PRAGMA user_version = 1")  # as a server of an older version has it
        assert "in use by another antwort" in error(antwort(tmp_path, "migrate"))
        assert "Run `antwort migrate` first" in error(antwort(tmp_path, "export", "x.tar"))
        assert server.process.poll() is None


def test_a_missing_store_is_an_error_that_does_not_show_the_password(tmp_path):
    assert "There is no database" in error(antwort(tmp_path, "export", "x.tar"))
    for arguments in (["migrate"], ["export", "x.tar"]):
        text = error(antwort(tmp_path, *arguments, ANTWORT_STORAGE_URL="postgresql://user:hunter2@127.0.0.1:9/db"))
        assert "hunter2" not in text
    assert list(tmp_path.iterdir()) == []
