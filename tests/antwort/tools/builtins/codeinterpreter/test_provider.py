"""What a response is given before its first call, and what becomes of files when a sandbox is lost."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Any

import pytest
from fixtures_containers import THEM, US, Place

from antwort.api.errors import ApiError
from antwort.api.items import Item, read
from antwort.api.tools import AutoContainer, CodeInterpreterTool, FunctionTool, NetworkPolicy
from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes import LocalSandboxes, Output
from antwort.engine.ports import ToolContext
from antwort.engine.stores import Owner, PageQuery
from antwort.tools.builtins.codeinterpreter.provider import CodeBench, CodeInterpreter
from antwort.tools.builtins.codeinterpreter.results import Result
from antwort.tools.builtins.codeinterpreter.types import SPEC, Arguments

pytestmark = pytest.mark.anyio

AUTO = CodeInterpreterTool(AutoContainer())


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def sandboxes(tmp_path_factory):
    local = LocalSandboxes(tmp_path_factory.mktemp("state"), max_output=1 << 20)
    yield local
    await local.aclose()


@pytest.fixture
async def place(sandboxes, tmp_path):
    async with Place.opened(sandboxes, tmp_path) as place:
        yield place


def provider(place: Place, tiers: tuple[str, ...] = ("1g", "4g"), **settings) -> CodeInterpreter:
    if settings:
        place.containers = place.made(**settings)
    return CodeInterpreter(place.containers, place.store, CodeInterpreterSettings(), tiers)


async def prepared(
    place: Place, *given: Item, tool=AUTO, history: tuple[Item, ...] = (), owner: Owner = US
) -> CodeBench:
    context = ToolContext(
        owner=owner, response_id="resp_1", history=[*history, *given], given=given, include=frozenset()
    )
    return await provider(place).prepare(tool, "tools[0]", context)


async def ran(bench: CodeBench, code: str) -> Result:
    call = await bench.open("code_interpreter", "call_1")
    async with aclosing(bench.run(call.item["container_id"], Arguments(code))) as steps:
        *_, last = [step async for step in steps]
    assert not isinstance(last, Output)
    return last


def message(*parts: dict) -> Item:
    return read({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, *parts]})


def inline(name: str, content: bytes) -> dict:
    return {"type": "input_file", "filename": name, "file_data": base64.b64encode(content).decode()}


def earlier(container: str) -> Item:
    return read(
        {"type": "code_interpreter_call", "id": "ci_1", "container_id": container, "code": "1", "outputs": None}
    )


async def test_only_the_code_interpreter_is_offered(place):
    assert provider(place).offer(AUTO) == (SPEC,)
    assert provider(place).offer(FunctionTool("f")) is None


async def test_a_response_that_never_calls_costs_nothing(place):
    bench = await prepared(place, message())

    assert bench.describe(SPEC) == SPEC
    assert (await place.containers.page(US, PageQuery())).data == []
    assert not place.sandboxes.asked.is_set()


async def test_the_model_is_told_which_files_there_will_be_and_are(place):
    declared, attached = await place.upload("a.csv", b"1"), await place.upload("b.csv", b"22")
    tool = CodeInterpreterTool(AutoContainer(file_ids=[declared]))
    given = message({"type": "input_file", "file_id": attached}, inline("c.csv", b"3"))
    bench = await prepared(place, given, tool=tool)
    assert bench.describe(SPEC).told.endswith("In /mnt/data now: a.csv, b.csv, c.csv.")

    await ran(bench, "open('made.txt', 'w').write('x')")
    container = (await bench.open("", "")).item["container_id"]
    again = await prepared(place, history=(given, earlier(container)))
    assert "made.txt" in again.describe(SPEC).told


async def test_the_model_is_told_the_names_that_files_really_get(place):
    uploads = [
        await place.upload("a.csv", b"1"),
        await place.upload("a.csv", b"22"),
        await place.upload("../b", b"333"),
    ]
    earlier_one = message(*({"type": "input_file", "file_id": one} for one in uploads[:2]), inline("a.csv", b"old"))
    given = message({"type": "input_file", "file_id": uploads[2]}, inline("a.csv", b"x"), inline("a.csv", b"y"))
    bench = await prepared(place, given, history=(earlier_one,))
    told = (bench.describe(SPEC).now or "").rpartition("now: ")[2].removesuffix(".").split(", ")
    listed = await ran(bench, "import os\nprint(*sorted(os.listdir()), sep='\\n')")

    assert listed.text.split() == sorted(told)
    assert set(told) == {"a.csv", f"{uploads[1]}-a.csv", "b", "2-a.csv", "3-a.csv"}
    assert (await ran(bench, "open('2-a.csv').read(), open('3-a.csv').read()")).text == "('x', 'y')"


async def test_links_cite_the_users_own_files_too_and_names_only_what_was_made(place):
    uploaded = await place.upload("a.csv", b"1")
    bench = await prepared(place, message({"type": "input_file", "file_id": uploaded}, inline("b.csv", b"2")))
    await ran(bench, "open('c.csv', 'w').write('3')")
    text = "sandbox:/mnt/data/a.csv, sandbox:/mnt/data/b.csv, a.csv, c.csv"

    found: list[Any] = [*bench.annotate(text)]
    cited = [(one.filename, text[one.start_index : one.end_index]) for one in found]
    assert cited == [
        ("a.csv", "sandbox:/mnt/data/a.csv"),
        ("b.csv", "sandbox:/mnt/data/b.csv"),
        ("c.csv", "c.csv"),
    ]


async def test_many_files_are_not_all_told(place):
    given = [message(inline(f"{number}.csv", b"1")) for number in range(40)]
    bench = await prepared(place, *given)

    assert bench.describe(SPEC).told.endswith("29.csv and 10 more.")


@pytest.mark.parametrize(
    "wish, param",
    [
        (AutoContainer(memory_limit="16g"), "memory_limit"),
        (AutoContainer(file_ids=["file-none"]), "file_ids"),
        (AutoContainer(network_policy=NetworkPolicy("allowlist", ["a.example"])), "network_policy"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused_by_its_field(place, wish, param):
    with pytest.raises(ApiError) as caught:
        await prepared(place, message(), tool=CodeInterpreterTool(wish))
    assert (caught.value.status, caught.value.param) == (400, f"tools[0].container.{param}")


async def test_a_container_by_its_id_must_be_there_ours_and_alive(place):
    container = await place.create()
    await prepared(place, message(), tool=CodeInterpreterTool(container))
    with pytest.raises(ApiError, match="not found"):
        await prepared(place, message(), tool=CodeInterpreterTool(container), owner=THEM)
    place.now += 3600
    with pytest.raises(ApiError, match=r"Container is expired\."):
        await prepared(place, message(), tool=CodeInterpreterTool(container))


async def test_files_are_copied_once_and_anew_where_the_sandbox_was_lost(place):
    uploaded = await place.upload("a.txt", b"old")
    given = message({"type": "input_file", "file_id": uploaded}, inline("b.txt", b"old"))
    bench = await prepared(place, given)
    await ran(bench, "for name in ('a.txt', 'b.txt'): open(name, 'w').write('new')")
    reads = "open('a.txt').read(), open('b.txt').read()"
    assert (await ran(bench, reads)).text == "('new', 'new')"

    assert "gone" in (await ran(bench, "import os; os._exit(1)")).text
    assert (await ran(bench, reads)).text.endswith("('old', 'old')")


async def test_a_later_response_finds_its_files_in_a_container_that_was_lost_meanwhile(place):
    given = message(inline("b.txt", b"old"))
    bench = await prepared(place, given)
    await ran(bench, "x = 1")
    container = (await bench.open("", "")).item["container_id"]
    await place.sandboxes.die()
    later = await prepared(place, message(), history=(given, earlier(container)))
    assert "started anew" in (await ran(later, "'x' in globals()")).text  # found out over this very call
    assert (await ran(later, "open('b.txt').read()")).text == "'old'"


async def test_a_file_that_was_deleted_since_is_no_reason_to_run_nothing(place):
    uploaded = await place.upload("a.txt", b"old")
    history = (message({"type": "input_file", "file_id": uploaded}),)
    await place.store.delete_file(US, uploaded)
    bench = await prepared(place, message(), history=history)

    assert (await ran(bench, "1 + 1")).text == "2"


async def test_a_container_that_is_gone_is_replaced_by_the_next_call_and_the_model_is_told(place):
    given = message(inline("a.txt", b"given"))
    bench = await prepared(place, given)
    assert (await ran(bench, "x = 1")).status == "completed"
    late = await bench.open("code_interpreter", "call_2")
    await place.containers.delete(US, late.item["container_id"])
    next_one = await bench.open("code_interpreter", "call_3")
    assert next_one.item["container_id"] != late.item["container_id"]

    late.write('{"code": "1"}')
    done = [step async for step in late.run()][-1]
    assert "not found" in getattr(done, "text", "")
    result = await ran(bench, "'x' in globals(), open('a.txt').read()")
    assert "(False, 'given')" in result.text
    assert "started anew" in result.text
    assert "started anew" not in (await ran(bench, "1")).text


async def test_a_container_that_was_asked_for_by_its_id_is_not_replaced(place):
    container_id = await place.create()
    bench = await prepared(place, tool=CodeInterpreterTool(container_id))
    await place.containers.delete(US, container_id)

    assert (await ran(bench, "1")).status == "failed"
    page = await place.containers.page(US, PageQuery())
    assert page.data == []


async def test_at_work_a_container_does_not_expire_however_long_the_model_thinks(place):
    container_id = await place.create()
    named = await prepared(place, tool=CodeInterpreterTool(container_id))
    auto = await prepared(place)
    with named.at_work(), auto.at_work():
        call = await auto.open("code_interpreter", "call_1")
        for _ in range(4):
            place.now += 15 * 60
            await place.containers.sweep()
        assert (await ran(named, "1")).text == "1"
        assert (await ran(auto, "2")).text == "2"
    place.now += 20 * 60
    await place.containers.sweep()
    for one in (container_id, call.item["container_id"]):
        assert (await place.containers.get(US, one)).status == "expired"


async def test_where_no_container_can_be_made_the_call_fails_and_says_why(place):
    context = ToolContext(owner=US, response_id="resp_1", history=[], given=[], include=frozenset())
    bench = await provider(place, max_memory=1).prepare(AUTO, "tools[0]", context)
    call = await bench.open("code_interpreter", "call_1")
    call.write('{"code": "1"}')
    steps = [step async for step in call.run()]

    assert "quota of memory" in getattr(steps[-1], "text", "")


async def test_names_of_packages_that_are_none_are_refused_and_nothing_is_run(place):
    bench = await prepared(place, message())
    call = await bench.open("code_interpreter", "call_1")
    async with aclosing(bench.run(call.item["container_id"], Arguments("x = 1", ("--index-url=x",)))) as steps:
        (refused,) = [step async for step in steps]

    assert isinstance(refused, Result)
    assert refused.status == "failed"
    assert "was not run" in refused.text
