from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_responses_api import FakeResponse, FakeResponsesApi, error, load, message, response, responses_api
from openai import APIStatusError, OpenAI
from openai.types.responses import Response

from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.openai import (
    ContainerFileCitation,
    FileCitation,
    UrlCitation,
    citations,
    download,
)
from weakincentives.adapters.openai.citations import parse_citation
from weakincentives.clock import ManualClock
from weakincentives.errors import ProviderFault, WinkError

RECORDED = Path(__file__).parents[4].parent / "shared" / "reference" / "openai-code-interpreter-response.json"
FILE = ContainerFileCitation("cntr_1", "cfile_1", "answer.txt")


def test_all_citation_types_are_parsed_and_unknown_ones_skipped():
    assert [one for name in ("code_interpreter", "file_search", "web_search") for one in citations(load(name)[-1])] == [
        ContainerFileCitation("cntr_1", "cfile_1", "answer.txt", 13, 17),
        FileCitation("file-1", "tea.md", 12),
        UrlCitation("https://tea.example/prices", "Tea prices", 13, 17),
    ]
    assert citations(response(message("x", {"type": "file_path", "file_id": "file-1", "index": 3}))) == (
        FileCitation("file-1", "", 3),
    )
    assert citations(load("unknown_items")[1]) == ()
    assert parse_citation({"type": "container_file_citation"}, 5) == ContainerFileCitation("", "", "", 5, 5)


def test_citations_accept_json_sdk_response_and_prompt_response():
    plain = load("code_interpreter")[-1]
    cited = citations(plain)

    assert citations(Response.model_validate({**plain, "output": plain["output"][1:]})) == cited
    assert citations(PromptResponse("p", "text", None, citations=cited)) == cited


@pytest.mark.skipif(not RECORDED.is_file(), reason="the recorded answers do not lie beside this clone")
def test_citation_in_a_recorded_response():
    (cited,) = citations(json.loads(RECORDED.read_text(encoding="utf-8")))

    assert isinstance(cited, ContainerFileCitation)
    assert (cited.filename, cited.start_index, cited.end_index) == ("two_dice_sums_10000.txt", 195, 236)


@pytest.fixture
def api():
    with responses_api() as fake:
        fake.routes["GET /containers/cntr_1/files/cfile_1/content"] = lambda request: FakeResponse(b"forty\0two")
        fake.routes["GET /files/file-1/content"] = lambda request: FakeResponse(b"tea")
        yield fake


@pytest.fixture
def client(api: FakeResponsesApi):
    with OpenAI(base_url=api.url, api_key="none", max_retries=0) as client:
        yield client


def test_download_into_a_directory_uses_the_file_name(client, tmp_path):
    path = download(client, FILE, tmp_path)

    assert path == tmp_path / "answer.txt"
    assert path.read_bytes() == b"forty\0two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["answer.txt"]


def test_download_to_a_path_replaces_an_existing_file(client, tmp_path):
    target = tmp_path / "copy.bin"
    target.write_bytes(b"old")

    assert download(client, FILE, str(target)) == target
    assert target.read_bytes() == b"forty\0two"
    assert download(client, FileCitation("file-1", "tea.md"), tmp_path).read_bytes() == b"tea"


def test_adapter_download(api, tmp_path):
    assert api.adapter().download(FILE, tmp_path).read_bytes() == b"forty\0two"


def test_adapter_download_retries_after_fault_and_partial_body(api, tmp_path):
    half = FakeResponse(b"forty", headers={"content-length": "9", "connection": "close"})
    tries = [error(503, "busy"), half, FakeResponse(b"forty\0two")]
    api.routes["GET /containers/cntr_1/files/cfile_1/content"] = lambda request: tries.pop(0)
    clock = ManualClock()

    assert api.adapter(clock=clock).download(FILE, tmp_path).read_bytes() == b"forty\0two"
    assert len(clock.slept) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["answer.txt"]


def test_missing_file_raises_provider_fault(api, tmp_path):
    api.routes = {"GET /containers/.*": lambda request: error(404, "gone")}
    with pytest.raises(ProviderFault, match="404: gone"):
        api.adapter().download(FILE, tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil.txt", "/etc/evil.txt", "..\\..\\evil.txt", "a/b/evil.txt", "evil.txt\0"])
def test_file_name_cannot_leave_the_directory(client, tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()

    assert download(client, ContainerFileCitation("cntr_1", "cfile_1", name), inside) == inside / "evil.txt"


@pytest.mark.parametrize("name", ["..", ".", "a/..", "/"])
def test_invalid_file_name_is_refused(client, tmp_path, name):
    with pytest.raises(WinkError, match="is not a file name"):
        download(client, ContainerFileCitation("cntr_1", "cfile_1", name), tmp_path)


def test_file_without_a_name_is_named_by_its_id(client, tmp_path):
    assert download(client, FileCitation("file-1", ""), tmp_path).name == "file-1"


def test_failed_download_changes_nothing(api, client, tmp_path):
    api.routes["GET /containers/.*"] = lambda request: error(404, "gone")
    api.routes = dict(reversed(api.routes.items()))
    target = tmp_path / "answer.txt"
    target.write_bytes(b"old")
    with pytest.raises(APIStatusError):
        download(client, FILE, tmp_path)

    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("answer.txt", b"old")]


def test_url_citation_cannot_be_downloaded(client, tmp_path):
    with pytest.raises(WinkError, match="UrlCitation is not a file that can be downloaded"):
        download(client, UrlCitation("https://x/", "X"), tmp_path)  # pyright: ignore[reportArgumentType] - the point
