"""Skills: `/v1/skills` with the real SDK, and skills in containers that the shell reads."""

from __future__ import annotations

import base64
import io
import secrets
import zipfile
from contextlib import ExitStack

import openai
import pytest
from fixtures_code_interpreter import AUTO, code_server
from fixtures_server import create_key
from fixtures_shell import SCRIPT, SHELL, shell_calls, shell_outputs

HEAD = "---\nname: greeting\ndescription: Greets people.\n---\nRun scripts/greet.sh NAME.\n"
GREET = b'#!/bin/sh\necho "Hello, $1!"\n'


def zipped(head: str = HEAD, **more: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("SKILL.md", head)
        script = zipfile.ZipInfo("scripts/greet.sh")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, GREET)
        for name, content in more.items():
            archive.writestr(name, content)
    return written.getvalue()


def inline(data: bytes | None = None, name: str = "greeting") -> dict:
    source = {"type": "base64", "media_type": "application/zip", "data": base64.b64encode(data or zipped()).decode()}
    return {"type": "inline", "name": name, "description": "Greets people.", "source": source}


def shell_with(*skills: dict) -> dict:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    keys = {tenant: create_key(directory, tenant, "--tenant", tenant) for tenant in ("one", "two")}
    with code_server(
        "local",
        directory,
        script=SCRIPT,
        auth={"keys_file": "keys.json"},
        skills={"max_skills": 10},
        containers={"max_containers": 500},
    ) as running:
        running.keys = keys
        yield running


@pytest.fixture
def client(server):
    with server.client(server.keys["one"]) as client:
        yield client


@pytest.fixture
def other(server):
    with server.client(server.keys["two"]) as client:
        yield client


@pytest.fixture
def skill(client):
    created = client.skills.create(files=("greeting.zip", zipped()))
    yield created
    client.skills.delete(created.id)


def run(client, command: str, tool: dict, **more):
    return client.responses.create(model="scripted", input=f"# shell\n{command}", tools=[tool], **more)


# ── /v1/skills ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_skill_is_created_from_an_archive_and_downloaded(client, skill):
    assert (skill.object, skill.name, skill.description) == ("skill", "greeting", "Greets people.")
    assert (skill.default_version, skill.latest_version) == ("1", "1")
    assert client.skills.retrieve(skill.id) == skill
    assert skill.id in [one.id for one in client.skills.list()]
    with zipfile.ZipFile(io.BytesIO(client.skills.content.retrieve(skill.id).content)) as archive:
        assert sorted(archive.namelist()) == ["SKILL.md", "scripts/greet.sh"]
        assert archive.read("scripts/greet.sh") == GREET


def test_a_skill_is_created_from_the_files_of_a_folder(client):
    created = client.skills.create(files=[("greeting/SKILL.md", HEAD.encode()), ("greeting/scripts/greet.sh", GREET)])
    with zipfile.ZipFile(io.BytesIO(client.skills.content.retrieve(created.id).content)) as archive:
        assert sorted(archive.namelist()) == ["SKILL.md", "scripts/greet.sh"]
    client.skills.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        client.skills.retrieve(created.id)


def test_versions(client, skill):
    second = client.skills.versions.create(skill.id, files=("x.zip", zipped(HEAD.replace("people", "cats"))))
    assert (second.object, second.version, second.skill_id) == ("skill.version", "2", skill.id)
    changed = client.skills.retrieve(skill.id)
    assert (changed.default_version, changed.latest_version, changed.description) == ("1", "2", "Greets people.")
    third = client.skills.versions.create(skill.id, files=("x.zip", zipped()), default=True)
    assert client.skills.retrieve(skill.id).default_version == third.version == "3"
    assert client.skills.update(skill.id, default_version="2").description == "Greets cats."
    listed = [one.version for one in client.skills.versions.list(skill.id, order="asc")]
    assert listed == ["1", "2", "3"]
    deleted = client.skills.versions.delete("3", skill_id=skill.id)
    assert (deleted.object, deleted.version, deleted.deleted) == ("skill.version.deleted", "3", True)
    assert client.skills.versions.retrieve("latest", skill_id=skill.id).version == "2"
    assert client.skills.versions.content.retrieve("1", skill_id=skill.id).content.startswith(b"PK")
    with pytest.raises(openai.BadRequestError, match="default version"):
        client.skills.versions.delete("2", skill_id=skill.id)
    for missing in ("3", "9", "x", "-1", "1" * 30):
        with pytest.raises(openai.NotFoundError):
            client.skills.versions.retrieve(missing, skill_id=skill.id)


def test_invalid_skills_are_refused(client, server):
    with pytest.raises(openai.BadRequestError, match=r"no SKILL\.md") as raised:
        client.skills.create(files=("x.zip", zipped().replace(b"SKILL.md", b"SKELL.md")))
    assert raised.value.param == "files"
    with pytest.raises(openai.BadRequestError, match="plain relative path"):
        client.skills.create(files=[("SKILL.md", HEAD.encode()), ("../x", b"")])
    with pytest.raises(openai.BadRequestError, match="files"):
        client.skills.create()
    with server.http() as http:
        headers = {"authorization": f"Bearer {server.keys['one']}"}
        broken = http.post("/v1/skills", content=b"x", headers={**headers, "content-type": "multipart/form-data"})
        assert broken.status_code == 400


def test_skills_of_another_tenant_are_not_found(other, skill):
    assert list(other.skills.list()) == []
    for call in (
        lambda: other.skills.retrieve(skill.id),
        lambda: other.skills.content.retrieve(skill.id),
        lambda: other.skills.update(skill.id, default_version="1"),
        lambda: other.skills.delete(skill.id),
        lambda: other.skills.versions.create(skill.id, files=("x.zip", zipped())),
        lambda: other.skills.versions.retrieve("1", skill_id=skill.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    with pytest.raises(openai.BadRequestError) as raised:
        run(other, "true", shell_with({"type": "skill_reference", "skill_id": skill.id}))
    assert raised.value.param == "tools[0].environment.skills[0].skill_id"


def test_the_quota_of_skills(client):
    created = []
    with pytest.raises(openai.RateLimitError) as raised:
        created.extend(client.skills.create(files=("x.zip", zipped())).id for _ in range(11))
    assert raised.value.type == "insufficient_quota"
    for one in client.skills.list():
        client.skills.delete(one.id)


# ── skills in containers ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_inline_skill_is_unpacked_read_only_and_listed_to_the_model(client):
    command = 'cat "$SKILLS_DIR/greeting/SKILL.md" | tail -1; "$SKILLS_DIR"/greeting/scripts/greet.sh Ann; '
    command += 'echo x > "$SKILLS_DIR/greeting/x" || rm -rf "$SKILLS_DIR/greeting" || echo kept'
    response = run(client, command, shell_with(inline()))

    (entry,) = shell_outputs(response)
    assert entry.stdout == "Run scripts/greet.sh NAME.\nHello, Ann!\nkept\n"
    assert "Read-only file system" in entry.stderr or "Permission denied" in entry.stderr
    asked = client.responses.create(model="scripted", input="describe", tools=[shell_with(inline())])
    assert asked.status == "completed"
    (files,) = [client.containers.files.list(shell_calls(response)[0].environment.container_id).data]
    assert files == []


def test_references_with_versions(client, skill):
    client.skills.versions.create(skill.id, files=("x.zip", zipped(second=b"2")))
    reference = {"type": "skill_reference", "skill_id": skill.id}
    listing = 'ls "$SKILLS_DIR/greeting"'
    outputs = {
        version: shell_outputs(run(client, listing, shell_with({**reference, **more})))[0].stdout
        for version, more in {"default": {}, "1": {"version": "1"}, "latest": {"version": "latest"}}.items()
    }
    assert outputs == {
        "default": "SKILL.md\nscripts\n",
        "1": "SKILL.md\nscripts\n",
        "latest": "SKILL.md\nscripts\nsecond\n",
    }


def test_a_chained_response_keeps_its_container_unless_it_declares_another_skill(client):
    first = run(client, "echo 1 > x", shell_with(inline()))
    same = run(client, "cat x", shell_with(inline()), previous_response_id=first.id)
    without = run(client, 'cat x; ls "$SKILLS_DIR"', SHELL, previous_response_id=first.id)
    another = run(client, "ls", shell_with(inline(name="other")), previous_response_id=first.id)

    assert shell_outputs(same)[0].stdout == "1\n"
    assert shell_outputs(without)[0].stdout == "1\ngreeting\n"
    assert shell_outputs(another)[0].stdout == ""


def test_skills_of_a_container_survive_its_sandbox_and_their_deletion(client):
    created = client.skills.create(files=("greeting.zip", zipped()))
    reference = {"type": "skill_reference", "skill_id": created.id, "version": "1"}
    container = client.containers.create(name="mine", skills=[reference, inline(name="second")])
    client.skills.delete(created.id)
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}
    python = {"type": "code_interpreter", "container": container.id}

    assert shell_outputs(run(client, 'ls "$SKILLS_DIR"', tool))[0].stdout == "greeting\nsecond\n"
    client.responses.create(model="scripted", input="# python\nimport os; os._exit(1)", tools=[python])
    assert shell_outputs(run(client, 'ls "$SKILLS_DIR"', tool))[0].stdout == "greeting\nsecond\n"


@pytest.mark.parametrize(
    "skills, param, message",
    [
        ([inline(), inline()], "tools[0].environment.skills[1]", "Two skills"),
        ([inline(name="../x")], "tools[0].environment.skills[0].source.data", "its name"),
        ([inline(b"PK nothing")], "tools[0].environment.skills[0].source.data", "not a valid ZIP"),
        (
            [{"type": "skill_reference", "skill_id": "skill_none"}],
            "tools[0].environment.skills[0].skill_id",
            "not found",
        ),
        (
            [{**inline(), "source": {"type": "base64", "media_type": "application/zip", "data": "%"}}],
            "tools[0].environment.skills[0].source.data",
            "base64",
        ),
        ([{"type": "inline", "name": "x"}], "tools[0].environment.skills[0]", "description"),
    ],
)
def test_invalid_skills_of_a_request_are_refused_by_name(client, skills, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        run(client, "true", shell_with(*skills))
    assert (raised.value.param or "").startswith(param)
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        client.containers.create(name="x", skills=skills)
    assert (raised.value.param or "").startswith(param.removeprefix("tools[0].environment."))


def test_skills_that_are_small_as_archives_only_are_refused_by_name(client):
    def bomb(name: str) -> dict:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("SKILL.md", HEAD)
            archive.writestr("zeros", bytes(15 << 20))
        return inline(written.getvalue(), name)

    bombs = [bomb(f"x{at}") for at in range(8)]
    with pytest.raises(openai.BadRequestError, match="The files of the skills have more than") as raised:
        run(client, "true", shell_with(*bombs))
    assert raised.value.param == "tools[0].environment.skills[6]"


def test_code_sees_the_skills_too(client):
    tools = [shell_with(inline()), AUTO]
    code = "# python\nimport os\nsorted(os.listdir(os.environ['SKILLS_DIR']))"
    response = client.responses.create(model="scripted", input=code, tools=tools)
    assert response.output_text == "['greeting']"


def test_archives_are_not_kept_while_the_model_writes(server, client):
    size, responses = 6 << 20, 8
    large = client.skills.create(files=("large.zip", zipped(noise=secrets.token_bytes(size))))
    tool = shell_with({"type": "skill_reference", "skill_id": large.id})
    with ExitStack() as streams:

        def begin(count: int) -> int:
            """Begin responses whose model does not end; the memory of the server after that."""
            for _ in range(count):
                stream = client.responses.create(model="scripted", input="without end", tools=[tool], stream=True)
                streams.callback(stream.close)
                assert next(event for event in stream if event.type == "response.output_text.delta")
            return server.memory_bytes()

        before = begin(2)
        assert begin(responses) - before < size * responses / 2
    client.skills.delete(large.id)
