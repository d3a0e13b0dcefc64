"""Preparation of the code interpreter, its container, and its files after the loss of a sandbox."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fixtures_containers import OTHER_OWNER, OWNER, ContainerEnv

from antwort.api.errors import ApiError
from antwort.api.items import Item, read
from antwort.api.tools import AutoContainer, CodeInterpreterTool, NetworkPolicy
from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes import LocalSandboxes
from antwort.containers.skills.library import SkillLibrary
from antwort.engine.ports import HostedCall, ToolContext, ToolDone
from antwort.engine.stores import Owner, PageQuery, SkillQuota, StoreFault
from antwort.tools.builtins.codeinterpreter.prepared import PreparedCodeInterpreter
from antwort.tools.builtins.codeinterpreter.provider import CodeInterpreterProvider
from antwort.tools.builtins.codeinterpreter.types import SPEC
from antwort.tools.builtins.container import ResponseContainers

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
async def env(sandboxes, tmp_path):
    async with ContainerEnv.opened(sandboxes, tmp_path) as env:
        yield env


def provider(env: ContainerEnv, tiers: tuple[str, ...] = ("1g", "4g"), **settings) -> CodeInterpreterProvider:
    if settings:
        env.containers = env.restart(**settings)
    skills = SkillLibrary(env.store, SkillQuota(10, 10, 1 << 20))
    shared = ResponseContainers(env.containers, env.store, tiers, skills)
    return CodeInterpreterProvider(shared, CodeInterpreterSettings())


async def prepared(
    env: ContainerEnv, *given: Item, tool=AUTO, history: tuple[Item, ...] = (), owner: Owner = OWNER
) -> PreparedCodeInterpreter:
    context = ToolContext(
        owner=owner, response_id="resp_1", history=[*history, *given], given=given, include=frozenset()
    )
    return await provider(env).prepare(tool, "tools[0]", context)


async def run_call(call: HostedCall, code: str, *requirements: str) -> ToolDone:
    call.write(json.dumps({"code": code, "requirements": requirements}))
    *_, last = [step async for step in call.run()]
    assert isinstance(last, ToolDone)
    return last


async def run_code(tool: PreparedCodeInterpreter, code: str) -> ToolDone:
    return await run_call(await tool.open("code_interpreter", "call_1", ""), code)


def description(tool: PreparedCodeInterpreter) -> str:
    (spec,) = tool.specs
    return spec.full_description


def message(*parts: dict) -> Item:
    return read({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, *parts]})


def inline(name: str, content: bytes) -> dict:
    return {"type": "input_file", "filename": name, "file_data": base64.b64encode(content).decode()}


def earlier(container: str) -> Item:
    return read(
        {"type": "code_interpreter_call", "id": "ci_1", "container_id": container, "code": "1", "outputs": None}
    )


async def test_a_response_without_calls_creates_neither_container_nor_sandbox(env):
    tool = await prepared(env, message())

    assert tool.specs == (SPEC,)
    assert (await env.containers.page(OWNER, PageQuery())).data == []
    assert not env.sandboxes.acquiring.is_set()


class WithoutContainers:
    """A store that cannot store a container."""

    def __init__(self, store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create_container(self, *_: object) -> None:
        raise StoreFault("The disk of the host is full.")


async def test_a_call_without_a_container_has_all_keys_of_its_item(env):
    env.store = WithoutContainers(env.store)
    env.containers = env.restart()
    tool = await prepared(env, message())
    call = await tool.open("code_interpreter", "call_1", "")
    done = await run_call(call, "1")

    assert call.item.keys() == done.item.keys() == {"id", "type", "status", "code", "container_id", "outputs"}
    assert (done.item["status"], done.item["code"]) == ("failed", "1")
    assert done.text == "There is no container to run it in: the server cannot store one right now."


async def test_the_description_lists_expected_and_existing_files(env):
    declared, attached = await env.upload("a.csv", b"1"), await env.upload("b.csv", b"22")
    declaration = CodeInterpreterTool(AutoContainer(file_ids=[declared]))
    given = message({"type": "input_file", "file_id": attached}, inline("c.csv", b"3"))
    tool = await prepared(env, given, tool=declaration)
    assert description(tool).endswith("In /mnt/data now: a.csv, b.csv, c.csv.")

    await run_code(tool, "open('made.txt', 'w').write('x')")
    container = (await tool.open("", "", "")).item["container_id"]
    again = await prepared(env, history=(given, earlier(container)))
    assert "made.txt" in description(again)


async def test_the_description_lists_the_names_that_the_files_get(env):
    uploads = [
        await env.upload("a.csv", b"1"),
        await env.upload("a.csv", b"22"),
        await env.upload("../b", b"333"),
    ]
    earlier_one = message(*({"type": "input_file", "file_id": one} for one in uploads[:2]), inline("a.csv", b"old"))
    given = message({"type": "input_file", "file_id": uploads[2]}, inline("a.csv", b"x"), inline("a.csv", b"y"))
    tool = await prepared(env, given, history=(earlier_one,))
    names = description(tool).rpartition("now: ")[2].removesuffix(".").split(", ")
    listed = await run_code(tool, "import os\nprint(*sorted(os.listdir()), sep='\\n')")

    assert listed.text.split() == sorted(names)
    assert set(names) == {"a.csv", f"{uploads[1]}-a.csv", "b", "2-a.csv", "3-a.csv"}
    assert (await run_code(tool, "open('2-a.csv').read(), open('3-a.csv').read()")).text == "('x', 'y')"


async def test_links_cite_every_file_and_names_only_created_files(env):
    uploaded = await env.upload("a.csv", b"1")
    tool = await prepared(env, message({"type": "input_file", "file_id": uploaded}, inline("b.csv", b"2")))
    await run_code(tool, "open('c.csv', 'w').write('3')")
    text = "sandbox:/mnt/data/a.csv, sandbox:/mnt/data/b.csv, a.csv, c.csv"

    found: list[Any] = [*tool.annotator().finish(text)]
    cited = [(one.filename, text[one.start_index : one.end_index]) for one in found]
    assert cited == [
        ("a.csv", "sandbox:/mnt/data/a.csv"),
        ("b.csv", "sandbox:/mnt/data/b.csv"),
        ("c.csv", "c.csv"),
    ]


async def test_the_description_lists_at_most_30_files(env):
    given = [message(inline(f"{number}.csv", b"1")) for number in range(40)]
    tool = await prepared(env, *given)

    assert description(tool).endswith("29.csv and 10 more.")


@pytest.mark.parametrize(
    "container, param",
    [
        (AutoContainer(memory_limit="16g"), "memory_limit"),
        (AutoContainer(file_ids=["file-none"]), "file_ids"),
        (AutoContainer(network_policy=NetworkPolicy("allowlist", ["a.example"])), "network_policy"),
    ],
)
async def test_an_invalid_container_field_is_refused_by_name(env, container, param):
    with pytest.raises(ApiError) as caught:
        await prepared(env, message(), tool=CodeInterpreterTool(container))
    assert (caught.value.status, caught.value.param) == (400, f"tools[0].container.{param}")


async def test_a_named_container_must_exist_and_be_running_and_the_owners(env):
    container = await env.create()
    await prepared(env, message(), tool=CodeInterpreterTool(container))
    with pytest.raises(ApiError, match="not found"):
        await prepared(env, message(), tool=CodeInterpreterTool(container), owner=OTHER_OWNER)
    env.now += 3600
    with pytest.raises(ApiError, match=r"Container is expired\."):
        await prepared(env, message(), tool=CodeInterpreterTool(container))


async def test_files_are_copied_once_and_again_after_the_loss_of_the_sandbox(env):
    uploaded = await env.upload("a.txt", b"old")
    given = message({"type": "input_file", "file_id": uploaded}, inline("b.txt", b"old"))
    tool = await prepared(env, given)
    await run_code(tool, "for name in ('a.txt', 'b.txt'): open(name, 'w').write('new')")
    reads = "open('a.txt').read(), open('b.txt').read()"
    assert (await run_code(tool, reads)).text == "('new', 'new')"

    assert "gone" in (await run_code(tool, "import os; os._exit(1)")).text
    assert (await run_code(tool, reads)).text.endswith("('old', 'old')")


async def test_a_later_response_copies_files_again_after_the_loss_of_the_sandbox(env):
    given = message(inline("b.txt", b"old"))
    tool = await prepared(env, given)
    await run_code(tool, "x = 1")
    container = (await tool.open("", "", "")).item["container_id"]
    await env.sandboxes.kill_all()
    later = await prepared(env, message(), history=(given, earlier(container)))
    assert "restarted" in (await run_code(later, "'x' in globals()")).text  # this call detects the loss
    assert (await run_code(later, "open('b.txt').read()")).text == "'old'"


async def test_a_deleted_upload_is_skipped(env):
    uploaded = await env.upload("a.txt", b"old")
    history = (message({"type": "input_file", "file_id": uploaded}),)
    await env.store.delete_file(OWNER, uploaded)
    tool = await prepared(env, message(), history=history)

    assert (await run_code(tool, "1 + 1")).text == "2"


async def test_a_deleted_auto_container_is_replaced_by_the_next_call(env):
    given = message(inline("a.txt", b"given"))
    tool = await prepared(env, given)
    assert (await run_code(tool, "x = 1")).item["status"] == "completed"
    late = await tool.open("code_interpreter", "call_2", "")
    await env.containers.delete(OWNER, late.item["container_id"])
    next_one = await tool.open("code_interpreter", "call_3", "")
    assert next_one.item["container_id"] != late.item["container_id"]

    assert "not found" in (await run_call(late, "1")).text
    result = await run_code(tool, "'x' in globals(), open('a.txt').read()")
    assert "(False, 'given')" in result.text
    assert "restarted" in result.text
    assert "restarted" not in (await run_code(tool, "1")).text


async def test_a_deleted_named_container_is_not_replaced(env):
    container_id = await env.create()
    tool = await prepared(env, tool=CodeInterpreterTool(container_id))
    await env.containers.delete(OWNER, container_id)

    assert (await run_code(tool, "1")).item["status"] == "failed"
    page = await env.containers.page(OWNER, PageQuery())
    assert page.data == []


async def test_a_leased_container_does_not_expire(env):
    container_id = await env.create()
    named = await prepared(env, tool=CodeInterpreterTool(container_id))
    auto = await prepared(env)
    with named.lease(), auto.lease():
        call = await auto.open("code_interpreter", "call_1", "")
        for _ in range(4):
            env.now += 15 * 60
            await env.containers.touch_used()
            await env.containers.expire_idle()
        assert (await run_code(named, "1")).text == "1"
        assert (await run_code(auto, "2")).text == "2"
    env.now += 20 * 60
    await env.containers.touch_used()
    await env.containers.expire_idle()
    for one in (container_id, call.item["container_id"]):
        assert (await env.containers.get(OWNER, one)).status == "expired"


async def test_a_call_without_a_container_fails_with_the_reason(env):
    context = ToolContext(owner=OWNER, response_id="resp_1", history=[], given=[], include=frozenset())
    tool = await provider(env, max_memory=1).prepare(AUTO, "tools[0]", context)
    call = await tool.open("code_interpreter", "call_1", "")

    assert "quota of memory" in (await run_call(call, "1")).text


async def test_invalid_requirements_are_refused_and_nothing_runs(env):
    tool = await prepared(env, message())
    call = await tool.open("code_interpreter", "call_1", "")
    done = await run_call(call, "x = 1", "--index-url=x")

    assert done.item["status"] == "failed"
    assert "was not run" in done.text
