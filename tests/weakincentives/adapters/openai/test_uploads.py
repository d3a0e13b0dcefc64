from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fake_responses_api import (
    FakeResponse,
    FakeResponsesApi,
    RecordedRequest,
    error,
    function_call,
    message,
    response,
    responses_api,
)

from weakincentives.adapters.openai import AutoContainerConfig, OpenAICodeInterpreterTool
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import DeadlineExceededError, NativeToolError, PromptEvaluationError
from weakincentives.filesystem import HostMount
from weakincentives.prompt import MarkdownSection, Prompt, SectionVisibility
from weakincentives.runtime import Session


@pytest.fixture
def host(tmp_path) -> Path:
    root = tmp_path / "host"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    (root / "a" / "data.csv").write_text("value\n1\n")
    (root / "a" / "notes.md").write_text("notes")
    (root / "b" / "data.csv").write_text("value\n2\n")
    return root


@pytest.fixture
def api():
    with responses_api(response(message("Done."))) as fake:
        uploaded: list[str] = []

        def upload(request: RecordedRequest) -> FakeResponse:
            uploaded.append(re.findall(rb'filename="([^"]+)"', request.raw)[0].decode())
            created = {
                "id": f"file-{len(uploaded)}",
                "object": "file",
                "bytes": 1,
                "created_at": 1,
                "purpose": "user_data",
            }
            return FakeResponse({**created, "filename": uploaded[-1], "status": "processed"})

        fake.routes["POST /files"] = upload
        fake.routes["DELETE /files/.*"] = lambda request: FakeResponse(
            {"id": request.path.rpartition("/")[2], "object": "file", "deleted": True}
        )
        yield fake


def prompt(*mounts: HostMount, roots: Any, **container: Any) -> Prompt[Any]:
    tool = OpenAICodeInterpreterTool(
        container=AutoContainerConfig(host_mounts=mounts, **container), allowed_host_roots=roots
    )
    return Prompt(ns="n", key="k", sections=[MarkdownSection(title="T", key="t", template="Add up.", tools=[tool])])


def methods(api: FakeResponsesApi) -> list[str]:
    return [f"{request.method} {request.path.removeprefix('/v1')}" for request in api.requests]


def test_host_mounts_are_uploaded_described_and_deleted(api, host):
    wanted = prompt(HostMount(str(host), "project"), roots=[host], file_ids=("file-x",))
    api.adapter().evaluate(wanted, session=Session())

    assert methods(api) == ["POST /files"] * 3 + ["POST /responses"] + [f"DELETE /files/file-{n}" for n in (1, 2, 3)]
    (body,) = api.bodies
    assert body["tools"][0]["container"] == {
        "type": "auto",
        "memory_limit": "1g",
        "file_ids": ["file-x", "file-1", "file-2", "file-3"],
    }
    assert "host_mounts" not in api.requests[3].raw.decode()
    note = body["input"][1]
    assert note["role"] == "developer"
    assert note["content"] == (
        "Files in the container:\n"
        "- /mnt/data/project__a__data.csv is /project/a/data.csv\n"
        "- /mnt/data/notes.md is /project/a/notes.md\n"
        "- /mnt/data/project__b__data.csv is /project/b/data.csv"
    )
    assert b"created_at" in api.requests[0].raw  # with an expiry, in case the deletion fails


def test_equal_file_names_get_unique_names(api, host):
    (host / "a__x.txt").write_text("1")
    (host / "a" / "x.txt").write_text("2")
    (host / "b" / "x.txt").write_text("3")
    api.adapter().evaluate(prompt(HostMount(str(host), "."), roots=[host]), session=Session())

    names = [
        re.findall(rb'filename="([^"]+)"', request.raw)[0] for request in api.requests if request.path == "/v1/files"
    ]
    assert len(names) == len(set(names)) == 6
    assert {b"a__x.txt", b"_a__x.txt"} <= set(names)


def test_mounts_of_an_opened_section_are_uploaded(api, host):
    tool = OpenAICodeInterpreterTool(
        container=AutoContainerConfig(host_mounts=(HostMount(str(host / "a")),)), allowed_host_roots=[host]
    )
    closed = MarkdownSection(
        title="T", key="t", template="Add up.", tools=[tool], summary="Sums.", visibility=SectionVisibility.SUMMARY
    )
    api.responses.insert(0, FakeResponse(response(function_call("open_section", path="t"))))
    api.adapter().evaluate(Prompt(ns="n", key="k", sections=[closed]), session=Session())

    assert methods(api) == ["POST /responses"] + ["POST /files"] * 2 + ["POST /responses"] + [
        f"DELETE /files/file-{n}" for n in (1, 2)
    ]
    assert api.bodies[1]["tools"][0]["container"]["file_ids"] == ["file-1", "file-2"]
    assert api.bodies[1]["input"][-1]["content"].startswith("Files in the container:")


def test_files_are_uploaded_once_for_several_requests(api, host):
    api.responses.insert(0, error(500, "broken", retry_after_ms="1"))
    api.adapter().evaluate(prompt(HostMount(str(host / "a")), roots=[host]), session=Session())

    assert methods(api).count("POST /files") == 2
    assert methods(api).count("POST /responses") == 2


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"roots": []}, "allowed_host_roots is empty"),
        ({"roots": ["/usr"]}, "host_mounts"),
        ({"max_bytes": 3}, "max_bytes"),
        ({"file_ids": tuple("x" * 48)}, "has 3 files, and a container takes 2 more"),
    ],
)
def test_invalid_mounts_are_refused_before_any_request(api, host, change, expected):
    mount = HostMount(str(host), "project", max_bytes=change.pop("max_bytes", None))
    with pytest.raises(NativeToolError, match=expected) as caught:
        api.adapter().evaluate(prompt(mount, **{"roots": [host], **change}), session=Session())

    assert (caught.value.phase, api.requests) == ("request", [])


def test_failed_upload_ends_the_evaluation_and_deletes_files(api, host, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    first = api.routes["POST /files"]
    api.routes["POST /files"] = lambda request: first(request) if len(api.requests) == 1 else error(400, "no more")
    with pytest.raises(PromptEvaluationError, match=r"file project__a__data.csv could not|file notes.md could not"):
        api.adapter().evaluate(prompt(HostMount(str(host), "project"), roots=[host]), session=Session())

    assert methods(api) == ["POST /files", "POST /files", "DELETE /files/file-1"]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_failed_deletion_of_an_upload_keeps_the_answer(api, host, caplog):
    api.routes["DELETE /files/.*"] = lambda request: error(404, "gone already")
    answer = api.adapter().evaluate(prompt(HostMount(str(host / "a")), roots=[host]), session=Session())

    assert answer.text == "Done."
    assert "could not be deleted" in caplog.text


def test_uploads_and_request_share_the_deadline(api, host):
    clock = ManualClock()
    first = api.routes["POST /files"]

    def upload(request: RecordedRequest) -> FakeResponse:
        clock.sleep(4)
        return first(request)

    api.routes["POST /files"] = upload
    wanted = prompt(HostMount(str(host / "a")), roots=[host])
    api.adapter().evaluate(wanted, session=Session(), deadline=Deadline.after(10, clock=clock))

    left = [float(request.headers["x-stainless-read-timeout"]) for request in api.requests]
    assert left == [10, 6, 2, 10, 10]  # two files, the request, and the deletions, which have their own timeout


def test_no_request_is_sent_after_uploads_used_the_deadline(api, host):
    clock = ManualClock()
    first = api.routes["POST /files"]

    def upload(request: RecordedRequest) -> FakeResponse:
        clock.sleep(6)
        return first(request)

    api.routes["POST /files"] = upload
    wanted = prompt(HostMount(str(host / "a")), roots=[host])
    with pytest.raises(DeadlineExceededError):
        api.adapter().evaluate(wanted, session=Session(), deadline=Deadline.after(10, clock=clock))

    assert api.bodies == []
    assert methods(api)[-2:] == ["DELETE /files/file-1", "DELETE /files/file-2"]
