from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.ports import Progress, ToolDone
from antwort.tools.client_run.arguments import InvalidArguments
from antwort.tools.client_run.shell import StreamedShellCall, read_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def split(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


async def finish(call: StreamedShellCall) -> ToolDone:
    steps = [step async for step in call.run()]
    (done,) = steps
    assert isinstance(done, ToolDone)
    return done


def folded(events: list[Progress]) -> list[str]:
    """The commands of events, whose order is checked."""
    commands: list[str] = []
    is_open = False
    for event in events:
        fields: dict[str, Any] = event.fields
        step = event.type.rpartition(".")[2]
        assert (not event.has_item_id, is_open) == (True, step != "added")
        if step == "added":
            commands.append("")
        elif step == "delta":
            commands[fields["command_index"]] += fields["delta"]
        else:
            assert fields["command"] == commands[fields["command_index"]]
        assert fields["command_index"] == len(commands) - 1
        is_open = step != "done"
    assert not is_open
    return commands


texts = st.text(min_size=1, max_size=12).filter(str.strip)


@given(st.lists(texts, min_size=1, max_size=5), st.lists(st.integers(0, 200), max_size=6), st.booleans())
async def test_streamed_commands_are_those_of_a_json_parser_for_any_split(commands, cuts, ascii_only):
    written = json.dumps({"commands": commands, "timeout_ms": 7}, ensure_ascii=ascii_only)
    call = StreamedShellCall("call_1")
    events = [event for part in split(written, cuts) for event in call.write(part)]
    done = await finish(call)

    assert folded(events) == commands
    assert done.awaits_client
    assert done.item["action"] == {"commands": commands, "timeout_ms": 7, "max_output_length": None}
    whole = read_call("call_1", written)
    assert folded(list(whole.events)) == commands
    assert {**whole.done, "id": ""} == {**done.item, "id": ""}


@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 200))
async def test_of_a_call_that_breaks_off_the_complete_commands_reach_the_client(commands, cut):
    written = json.dumps({"commands": commands})
    call = StreamedShellCall("call_1")
    events = call.write(written[: cut % len(written)])
    done = await finish(call)

    complete = [event.fields["command"] for event in events if event.type.endswith("done")]
    assert complete == commands[: len(complete)]
    assert done.item["action"]["commands"] == complete
    assert (done.item["status"], done.awaits_client) == (("completed", True) if complete else ("incomplete", False))


@pytest.mark.parametrize("written", ["", "{}", "[]", "nope", '{"commands": [5]}', '{"commands": {"a": 1}}'])
def test_a_whole_call_without_commands_is_invalid(written):
    with pytest.raises(InvalidArguments):
        read_call("call_1", written)
