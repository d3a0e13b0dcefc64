from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_echo_provider import PreparedEcho
from fake_llama_server import FAKE_SERVER_COMMAND, LlamaReply, received_requests
from fixtures_sealing import new_sealer
from fixtures_turn import EchoTools
from recovery import Recovery, recovered
from unfinished import unfinished_ids

from antwort.api.errors import ApiError
from antwort.api.events import FINAL_EVENTS, kind_of
from antwort.api.requests import CreateResponse, decode
from antwort.api.responses import IgnoredTool
from antwort.engine.background import Background
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel, Finished, FunctionSpec, Model, SamplingOptions
from antwort.engine.replicas import takeover as takeover_module
from antwort.engine.stores import (
    ContentFault,
    ConversationRecord,
    FileRecord,
    Owner,
    ResponseTakenOver,
    StoreFault,
)
from antwort.models import Scripted, parse_script
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.registry import ModelRegistry
from antwort.net.sse import decode_frame
from antwort.storage import open_store

pytestmark = pytest.mark.anyio

US = Owner("us", "key")
SECRET = "hunter2-in-a-header"
MCP = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://x.example",
    "authorization": SECRET,
    "headers": {"x": SECRET},
}
SCRIPT = """
answers:
  - {when: {turn: 1, tool: remote}, reply: [{call: {name: remote}}]}
  - {when: {text: fail}, reply: [{text: half}, {fault: {}}]}
  - {reply: [{text: hello}]}
"""


class RemoteTools(EchoTools):
    """Hosts MCP tools, and records their declarations."""

    specs = (FunctionSpec("remote", None, None),)
    tool_types = ("mcp",)

    def __init__(self):
        super().__init__()
        self.declared = []

    async def prepare(self, tool, param, context):
        self.declared.append(tool)
        return await super().prepare(tool, param, context)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Refusing:
    """A store that refuses the end of a response so many times."""

    def __init__(self, store, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def finish_response(self, owner, response, **options) -> None:
        if response.ended and self.times:
            self.times -= 1
            raise StoreFault("The store failed: the disk is full.")
        await self._store.finish_response(owner, response, **options)


class Flapping:
    """A store of several replicas that fails some of the reads of a checkpoint and of the checks."""

    replicas = object()

    def __init__(self, store, reads: list[bool], checks: list[bool], fault: type[StoreFault] = StoreFault) -> None:
        self._store = store
        self._reads = reads
        self._checks = checks
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_steps(self, owner, response_id):
        self._take(self._reads)
        return await self._store.read_steps(owner, response_id)

    async def check_writable(self) -> None:
        self._take(self._checks)
        await self._store.check_writable()

    def _take(self, outcomes: list[bool]) -> None:
        """The next outcome; what follows the last one succeeds."""
        if outcomes and not outcomes.pop(0):
            raise self._fault("The store failed: it is away.")


@asynccontextmanager
async def engine_at(directory, refusals: int = 0, backend: Model | None = None):
    store: Any = await open_store(f"sqlite:///{directory}/antwort.db", directory / "blobs")
    store = Refusing(store, refusals) if refusals else store
    model = ChosenModel("m", backend or Scripted(parse_script(SCRIPT)), "m")
    engine = Engine(
        ModelRegistry({"m": model}, default="m", default_for_unknown=False), RemoteTools(), store, new_sealer()
    )
    engine.retries.first_wait = 0.01
    try:
        yield engine
    finally:
        await engine.retries.aclose()
        await store.aclose()


@pytest.fixture
async def engine(tmp_path):
    async with engine_at(tmp_path) as engine:
        yield engine


def request(**fields):
    return decode(msgspec.json.encode({"input": "hello", **fields}), CreateResponse)


async def stored(engine, run) -> Any:
    return (await engine.store.get_response(US, run.response.id)).response


async def attempts(engine, run) -> int:
    found = await engine.store.get_response(US, run.response.id)
    assert found is not None
    return found.resumed


async def consume(run) -> None:
    """Consume all events, none of which may be the last one of a response."""
    async for event in run.events():
        assert not isinstance(event, FINAL_EVENTS)


def stored_bytes(directory):
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def test_tool_secrets_reach_the_provider_and_are_neither_stored_nor_returned(engine, tmp_path):
    run = await engine.start(US, request(tools=[MCP], input=[{"role": "user", "content": "hello"}]))
    events = [event async for event in run.events()]

    assert [declared.authorization for declared in engine.tools.declared] == [SECRET]
    assert run.response.status == "completed"
    assert SECRET not in str(events)
    assert (run.response.tools[0]["headers"], run.response.tools[0]["authorization"]) == (None, None)
    assert SECRET.encode() not in stored_bytes(tmp_path)


async def test_a_background_response_is_resumed_after_a_kill_unless_it_had_secrets(tmp_path):
    async with engine_at(tmp_path) as engine:
        plain = await engine.start(US, request(background=True))
        secret = await engine.start(US, request(background=True, tools=[MCP]))
        added = {"type": "additional_tools", "role": "developer", "tools": [MCP]}
        await engine.start(US, request(background=True, input=[added, {"role": "user", "content": "hello"}]))
        foreground = await engine.start(US, request())
    async with engine_at(tmp_path) as engine:
        again = await recovered(engine)

        assert [run.response.id for run in again] == [plain.response.id]
        assert (await again[0].finish()).output[0]["content"][0]["text"] == "hello"
        lost = await stored(engine, secret)
        assert lost.status == "failed"
        assert "secrets" in lost.error.message
        [(number, frame)] = await engine.store.read_events(US, secret.response.id, -1)
        assert (number, decode_frame(frame)[0]) == (0, "response.failed")
        assert (await stored(engine, foreground)).status == "failed"
        assert await unfinished_ids(engine.store) == []
    assert SECRET.encode() not in stored_bytes(tmp_path)


async def test_a_background_response_with_ignored_tools_is_resumed_after_a_kill(tmp_path):
    lacking = [{"type": "web_search", "newopt": 1}, {"type": "hologram"}]
    added = {"type": "additional_tools", "role": "developer", "tools": lacking}
    body = {"model": "m", "background": True, "tools": lacking, "input": [added, {"role": "user", "content": "hello"}]}
    async with engine_at(tmp_path) as engine:
        engine.ignore_unavailable_tools = True
        begun = await engine.start(US, decode(msgspec.json.encode(body), CreateResponse, tool_types=engine.tool_types))
    async with engine_at(tmp_path) as engine:
        engine.ignore_unavailable_tools = True
        (again,) = await recovered(engine)

        response = await again.finish()
    assert (response.status, response.tools) == ("completed", lacking)
    ignored = [IgnoredTool(f"input[0].tools[{at}]", tool["type"]) for at, tool in enumerate(lacking)]
    assert response.ignored_tools == begun.response.ignored_tools == ignored


async def test_a_compaction_in_the_background_is_resumed_after_a_kill(tmp_path):
    given = [{"role": "user", "content": "hello"}, {"type": "compaction_trigger"}]
    async with engine_at(tmp_path) as engine:
        await engine.start(US, request(background=True, input=given))
    async with engine_at(tmp_path) as engine:
        [run] = await recovered(engine)
        assert [item["type"] for item in (await run.finish()).output] == ["compaction"]


async def test_a_compacted_history_is_not_stored(engine, tmp_path):
    done = await engine.compact(US, request(input="a marker in the history"))

    assert [item["type"] for item in done.output] == ["message", "compaction"]
    assert done.compaction.method == "summary"
    assert b"a marker in the history" not in stored_bytes(tmp_path)


async def test_a_known_context_window_limits_the_threshold(tmp_path):
    async with engine_at(tmp_path) as engine:
        chosen = msgspec.structs.replace(engine.models.find("m"), context_window=4000)
        engine.models = ModelRegistry({"m": chosen}, default="m", default_for_unknown=False)
        managed = [{"type": "compaction", "compact_threshold": 100_000}]
        turns = [{"role": role, "content": "word " * 400} for role in ("user", "assistant")] * 4
        run = await engine.start(US, request(context_management=managed, input=[*turns, turns[0]]))
        response = await run.finish()

    assert [item["type"] for item in response.output] == ["compaction", "message"]


class Recording(Scripted):
    """Names the first stop sequence of the request as the one that ended the text."""

    async def generate(self, request):
        self.seed = request.sampling.seed
        async for piece in super().generate(request):
            is_last = isinstance(piece, Finished)
            yield msgspec.structs.replace(piece, stop_sequence=request.sampling.stop[0]) if is_last else piece


async def test_sampling_options_of_other_wires_reach_the_model(tmp_path):
    model = Recording(parse_script(SCRIPT))
    async with engine_at(tmp_path, backend=model) as engine:
        run = await engine.start(US, request(), SamplingOptions(stop=("END",), seed=7))
        assert run.stop_sequence is None
        await run.finish()

    assert (run.stop_sequence, model.seed) == ("END", 7)


async def test_logit_bias_is_refused_where_the_model_cannot_use_it(engine):
    with pytest.raises(ApiError) as caught:
        await engine.start(US, request(), SamplingOptions(logit_bias={"1": 5}))

    assert (caught.value.status, caught.value.param) == (400, "logit_bias")
    assert "'m'" in caught.value.message
    await engine.start(US, request(store=False), SamplingOptions(logit_bias={}))


async def test_a_response_is_stored_before_its_first_and_before_its_last_event(engine):
    run = await engine.start(US, request())
    assert (await stored(engine, run)).status == "in_progress"
    async for event in run.events():
        if isinstance(event, FINAL_EVENTS):
            assert (await stored(engine, run)) == event.response


async def test_polling_sees_queued_in_progress_and_completed(engine):
    run = await engine.start(US, request(background=True))
    seen = [(await stored(engine, run)).status]
    added = "response.output_item.added"
    seen += [(await stored(engine, run)).status async for event in run.events() if kind_of(event) == added]
    seen.append((await stored(engine, run)).status)

    assert seen == ["queued", "in_progress", "completed"]


async def test_an_end_that_the_store_refuses_is_retried_and_not_sent(tmp_path):
    async with engine_at(tmp_path, refusals=3) as engine:
        run = await engine.start(US, request())
        with pytest.raises(StoreFault):
            await consume(run)
        async with asyncio.timeout(10):
            while (await stored(engine, run)).status != "completed":  # noqa: ASYNC110 - the store is looked at, it does not call
                await asyncio.sleep(0.01)


async def test_an_end_that_was_never_stored_is_failed_by_recovery(tmp_path):
    async with engine_at(tmp_path, refusals=1_000_000) as engine:
        run = await engine.start(US, request())
        with pytest.raises(StoreFault):
            await run.finish()
    async with engine_at(tmp_path) as engine:
        assert await recovered(engine) == []
        assert (await stored(engine, run)).status == "failed"


async def test_closing_cancels_a_response_unless_the_server_is_stopping(engine):
    for stopping, status in ((False, "cancelled"), (True, "in_progress")):
        run = await engine.start(US, request())
        async with aclosing(run.events()) as events:
            await anext(events)
            run.server_stopping = stopping
        assert (await stored(engine, run)).status == status


async def test_a_conversation_gains_input_and_output_also_without_store(engine):
    await engine.store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [])
    for store in (True, False):
        await (await engine.start(US, request(conversation="conv_1", store=store))).finish()
    items = await engine.store.all_items(US, "conv_1")

    assert [item["content"][0]["text"] for item in items] == ["hello"] * 4
    assert [item["role"] for item in items] == ["user", "assistant"] * 2


async def test_a_conversation_gains_nothing_of_a_failed_response(engine):
    await engine.store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [])
    run = await engine.start(US, request(conversation="conv_1", input="fail"))

    assert (await run.finish()).status == "failed"
    assert await engine.store.all_items(US, "conv_1") == []


async def test_the_last_events_of_a_background_response_are_stored_with_its_end(engine):
    run = await engine.start(US, request(background=True))
    await run.finish()
    kept = await engine.store.read_events(US, run.response.id, -1)

    assert decode_frame(kept[-1][1])[0] == "response.completed"


async def test_a_background_response_whose_model_is_gone_fails_on_recovery(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        engine.models = ModelRegistry({}, default=None, default_for_unknown=False)
        assert await recovered(engine) == []
        assert (await stored(engine, run)).status == "failed"


async def uploaded(engine, text: bytes) -> str:
    async def content():
        yield text

    record = FileRecord(id="file-1", bytes=0, created_at=1, filename="a.txt", purpose="user_data")
    return (await engine.store.create_file(US, record, content())).id


async def test_a_response_that_cannot_be_resumed_does_not_prevent_the_others(tmp_path):
    async with engine_at(tmp_path) as engine:
        file_id = await uploaded(engine, b"hello")
        part = {"type": "input_file", "file_id": file_id}
        lost = await engine.start(US, request(background=True, input=[{"role": "user", "content": [part]}]))
        plain = await engine.start(US, request(background=True))
    for blob in (tmp_path / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    async with engine_at(tmp_path) as engine:
        again = await recovered(engine)

        assert [run.response.id for run in again] == [plain.response.id]
        ended = await stored(engine, lost)
        assert (ended.status, ended.error.code) == ("failed", "server_error")
        assert str(tmp_path) not in ended.error.message
        [(_, frame)] = await engine.store.read_events(US, lost.response.id, -1)
        assert decode_frame(frame)[0] == "response.failed"


async def test_a_provider_that_raises_does_not_prevent_recovery(tmp_path):
    class Broken(RemoteTools):
        async def prepare(self, tool, param, context):
            raise RuntimeError("a secret of the tool's")

    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True, tools=[{**MCP, "authorization": None, "headers": None}]))
    async with engine_at(tmp_path) as engine:
        engine.tools = Broken()
        assert await recovered(engine) == []
        ended = await stored(engine, run)
        assert ended.status == "failed"
        assert "secret" not in ended.error.message


async def test_a_response_is_resumed_at_most_three_times(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    for _ in range(3):
        async with engine_at(tmp_path) as engine:
            assert [again.response.id for again in await recovered(engine)] == [run.response.id]
    async with engine_at(tmp_path) as engine:
        assert await recovered(engine) == []
        ended = await stored(engine, run)
        assert ended.status == "failed"
        assert "begun 4 times" in ended.error.message


async def test_recovery_raises_where_the_store_cannot_be_written(tmp_path):
    async with engine_at(tmp_path) as engine:
        await engine.start(US, request())
    async with engine_at(tmp_path, refusals=1_000_000) as engine:
        with pytest.raises(StoreFault):
            await recovered(engine)


async def test_a_response_that_was_to_be_cancelled_is_not_resumed(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
        await engine.store.request_cancel(US, run.response.id)
    async with engine_at(tmp_path) as engine:
        outcomes = []
        recovery = Recovery(engine)
        recovery.on_taken_over = outcomes.append
        assert await recovery.recovered() == []
        assert (await stored(engine, run)).status == "cancelled"
        [(_, frame)] = await engine.store.read_events(US, run.response.id, -1)
        assert decode_frame(frame)[0] == "response.incomplete"
        assert outcomes == ["cancelled"]


async def test_what_could_not_be_taken_over_is_taken_over_by_the_next_call(tmp_path):
    async with engine_at(tmp_path) as engine:
        foreground = await engine.start(US, request())
        background = await engine.start(US, request(background=True))
    async with engine_at(tmp_path, refusals=1) as engine:
        recovery = Recovery(engine)
        with pytest.raises(StoreFault, match="the disk is full"):
            await recovery.recovered()
        assert [run.response.id for run in recovery.runs] == [background.response.id]
        assert await recovery.recovered() == []
        assert (await stored(engine, foreground)).status == "failed"


@pytest.mark.parametrize("reads, checks", [([False], [False]), ([False, False], [True, False])])
async def test_a_store_that_is_away_for_a_moment_fails_no_response(tmp_path, reads, checks):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [*reads], [*checks])
        store, engine.store = engine.store, flapping
        recovery = Recovery(engine)
        with pytest.raises(StoreFault):
            await recovery.recovered()
        found = await store.get_response(US, run.response.id)
        assert found is not None
        assert not found.response.ended
        assert [again.response.id for again in await recovery.recovered()] == [run.response.id]


async def test_a_response_that_a_working_store_cannot_read_is_failed(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [False, False], [])
        engine.store = flapping
        assert await recovered(engine) == []
        assert (await stored(engine, run)).status == "failed"


async def test_contents_of_files_that_cannot_be_read_for_a_moment_fail_no_response(tmp_path):
    async with engine_at(tmp_path) as engine:
        first, second = [await engine.start(US, request(background=True)) for _ in range(2)]
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [False, True, False, False], [], ContentFault)
        engine.store = flapping
        recovery = Recovery(engine)
        assert [run.response.id for run in await recovery.step()] == [second.response.id]
        for _ in range(2):
            assert await recovery.step() == []
        assert not (await stored(engine, first)).ended
        assert await attempts(engine, first) == 0
        assert [run.response.id for run in await recovery.step()] == [first.response.id]
        assert await attempts(engine, first) == 1


async def test_contents_of_files_that_cannot_be_read_for_long_fail_a_response(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [False], [], ContentFault)
        engine.store = flapping
        recovery = Recovery(engine)
        recovery.content_timeout = -1
        assert await recovery.step() == []
        assert (await stored(engine, run)).status == "failed"


async def test_a_response_whose_end_raises_does_not_prevent_the_others(tmp_path, monkeypatch):
    async with engine_at(tmp_path) as engine:
        broken = await engine.start(US, request())
        plain = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        write = engine.store.finish_response

        async def raising(owner, response, **options):
            if response.id == broken.response.id:
                raise RuntimeError("a defect")
            await write(owner, response, **options)

        monkeypatch.setattr(engine.store, "finish_response", raising)
        recovery = Recovery(engine)
        assert [run.response.id for run in await recovery.recovered()] == [plain.response.id]
        assert await recovery.recovered() == []


async def test_a_response_that_waits_for_contents_is_cancelled_for_another_replica(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [False], [], ContentFault)
        engine.store = flapping
        recovery = Recovery(engine)
        assert await recovery.step() == []
        await engine.store.request_cancel(US, run.response.id)
        await recovery._check_running()
        assert (await stored(engine, run)).status == "cancelled"
        assert await recovery.step() == []


async def test_a_replica_that_may_count_as_dead_starts_nothing(engine):
    def refuse() -> None:
        raise StoreFault("The membership of this replica was not renewed in time.")

    engine.check_lease = refuse
    with pytest.raises(StoreFault, match="not renewed"):
        await engine.start(US, request())
    assert await unfinished_ids(engine.store) == []
    with pytest.raises(StoreFault, match="not renewed"):
        await Recovery(engine).step()
    assert (await (await engine.start(US, request(store=False))).finish()).status == "completed"


async def test_what_is_cancelled_or_deleted_before_it_is_taken_over_is_not_resumed(tmp_path):
    """The store refused the first attempt, and the client was faster than the next one."""
    async with engine_at(tmp_path) as engine:
        cancelled = await engine.start(US, request(background=True))
        deleted = await engine.start(US, request(background=True))
    async with engine_at(tmp_path) as engine:
        flapping: Any = Flapping(engine.store, [False] * 2, [False] * 2)
        store, engine.store = engine.store, flapping
        recovery = Recovery(engine)
        with pytest.raises(StoreFault):
            await recovery.recovered()
        await Background(store).end(US, cancelled.response.id)
        await store.delete_response(US, deleted.response.id)
        assert await recovery.recovered() == []
        assert (await stored(engine, cancelled)).status == "cancelled"


async def test_recovery_goes_on_until_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(takeover_module, "MAX_CLAIMED", 2)
    async with engine_at(tmp_path) as engine:
        for number in range(7):
            await engine.start(US, request(background=number in {2, 6}))
    async with engine_at(tmp_path) as engine:
        again = await recovered(engine)
        assert sorted(await unfinished_ids(engine.store)) == sorted(run.response.id for run in again)
        assert len(again) == 2


async def test_a_run_whose_response_was_taken_over_writes_nothing_more(tmp_path):
    async with engine_at(tmp_path) as engine:
        run = await engine.start(US, request())
        take_over = "UPDATE responses SET replica = 'rep_other'"
        store: Any = engine.store
        await store._database.write_all_tenants(lambda rows: rows.execute(take_over))
        with pytest.raises(ResponseTakenOver):
            await consume(run)
        assert run.is_taken_over
        assert (await stored(engine, run)).status == "in_progress"


async def test_an_invalid_request_is_refused_before_anything_is_stored(engine):
    for fields in ({"model": "other"}, {"tools": [{"type": "web_search"}]}, {"previous_response_id": "resp_0"}):
        with pytest.raises(ApiError):
            await engine.start(US, request(**fields))
    assert await unfinished_ids(engine.store) == []


async def test_counting_tokens_stores_nothing(engine):
    assert await engine.count_tokens(US, request()) > 0
    assert await unfinished_ids(engine.store) == []


@pytest.mark.parametrize(
    "error, message",
    [
        (ApiError(400, "No such vector store."), "No such vector store."),
        (RuntimeError("a secret of the tool's"), "Tool type 'mcp' is not available now."),
    ],
)
async def test_an_api_error_of_prepare_is_returned_and_any_other_exception_is_a_503(engine, error, message):
    class Broken(RemoteTools):
        async def prepare(self, tool, param, context):
            raise error

    engine.tools = Broken()
    with pytest.raises(ApiError) as caught:
        await engine.start(US, request(tools=[MCP]))
    assert caught.value.message == message
    assert caught.value.status == (400 if isinstance(error, ApiError) else 503)
    assert await unfinished_ids(engine.store) == []


@pytest.mark.parametrize("name", ["specs", "reads_files"])
async def test_a_prepared_tool_whose_property_raises_is_a_503(engine, name):
    class Raising(PreparedEcho):
        def __getattribute__(self, attribute):
            if attribute == name:
                raise RuntimeError(attribute)
            return super().__getattribute__(attribute)

    class Broken(RemoteTools):
        async def prepare(self, tool, param, context):
            return Raising(tool)

    engine.tools = Broken()
    with pytest.raises(ApiError, match="Tool type 'mcp' is not available now") as caught:
        await engine.start(US, request(tools=[MCP]))
    assert caught.value.status == 503


async def test_a_store_fault_of_prepare_is_raised_as_it_is(engine):
    class Broken(RemoteTools):
        async def prepare(self, tool, param, context):
            raise StoreFault("The disk is full.")

    engine.tools = Broken()
    with pytest.raises(StoreFault):
        await engine.start(US, request(tools=[MCP]))


async def test_an_unsupported_tool_type_is_refused_before_the_history_is_read(engine):
    with pytest.raises(ApiError, match="'web_search' is not available on this server") as caught:
        await engine.start(US, request(tools=[{"type": "web_search"}], previous_response_id="resp_0"))
    assert caught.value.param == "tools[0].type"


async def test_a_tool_is_prepared_once_for_a_response(engine):
    run = await engine.start(US, request(tools=[MCP]))
    await run.finish()

    assert len(engine.tools.declared) == 1


async def test_a_forced_choice_is_enforced_with_the_embedded_model(tmp_path):
    weights = LlamaReply(block='{"n": 1}').write(tmp_path / "reply.json")  # chooses none of the tools
    model = Embedded(Supervisor(weights, command=FAKE_SERVER_COMMAND))
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("add", "subtract")]
    try:
        async with engine_at(tmp_path, backend=model) as engine:
            run = await engine.start(US, request(tools=tools, tool_choice="required"))
            failed = await run.finish()
            attempts = sum("grammar" in completion for completion in received_requests(weights))
            forced = {"type": "function", "name": "add"}
            named = await (await engine.start(US, request(tools=tools, tool_choice=forced))).finish()
    finally:
        await model.aclose()

    assert (failed.status, failed.output, attempts) == ("failed", [], 3)
    assert failed.error is not None
    assert failed.error.message.startswith("Model 'm' did not call 'add' or 'subtract' in 3 attempts")
    assert [(item["name"], item["arguments"]) for item in named.output] == [("add", '{"n": 1}')]
