"""Compaction with the clients of others, against the server process: openai-python, openai-agents, a coding agent.

The scripted model shows what it sees: it repeats all facts, noises and rules of its request. Its summaries repeat the
facts only. So a fact in the answer of a later request has passed through the summary of a compaction, and a noise has
not been compacted.
"""

from __future__ import annotations

import json
import re
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, function_tool
from agents.memory import OpenAIResponsesCompactionSession
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import Server, create_key, run_server
from openai import AsyncOpenAI

MODEL = "gpt-scripted"  # openai-agents compacts only with models that are named like OpenAI's
SEEN = "<<find /fact-[0-9]+|noise-[0-9]+|rule-[0-9]+|task-[0-9]+/>>"
SCRIPT = {
    "fragment": 24,
    "answers": [
        # `<<find>>` shows each match once, so a request with a message twice needs an answer of its own. The colon
        # distinguishes the message itself from the answers that name it.
        {"when": {"any": r"/((?:rule|task)-[0-9]+:)[\s\S]*\1/"}, "reply": [{"text": "SEEN TWICE: " + SEEN}]},
        {
            "when": {"text": "Summarize the conversation above"},
            "reply": [{"text": "Facts: <<find /fact-[0-9]+/>>"}],
        },
        {"when": {"text": "ids"}, "reply": [{"text": "<<find /file-[0-9a-z]{8}/>>"}]},
        {
            "when": {"text": "look up", "turn": 1, "tool": "look_up"},
            "reply": [
                {"reasoning": "A tool knows this: noise-77."},
                {"call": {"name": "look_up", "arguments": {"query": "<<text>>"}}},
            ],
        },
        {"when": {"output": "fact"}, "reply": [{"text": "Found <<output>>"}]},
        {"reply": [{"text": SEEN}]},
    ],
}
CONFIG = {
    "models": {MODEL: {"kind": "scripted", "script": "script.yaml"}},
    "auth": {"keys_file": "keys.json", "requests_per_minute": 100_000},
    # so small that a compaction keeps a few words of the user and the newest call at most
    "compaction": {"user_message_tokens": 30, "tool_output_tokens": 60},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    key = create_key(directory, "key")
    with run_server(directory, CONFIG, script=SCRIPT) as running:
        running.keys["key"] = key
        yield running


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


def call_and_output(number: int, output: str) -> list[dict[str, Any]]:
    call_id = f"call_{number}"
    return [
        {"type": "function_call", "call_id": call_id, "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": output},
    ]


def long_history() -> list[dict[str, Any]]:
    """Facts in an answer, a tool output and an old user message, each among much that is not needed again."""
    history = [user("task-1: remember fact-1. " + "noise-1 " * 50), assistant("I found fact-2. " + "noise-2 " * 50)]
    for number in range(3, 9):
        history += [
            user(f"Go on with {number}."),
            *call_and_output(number, f"fact-{number} " + f"noise-{number} " * 50),
        ]
        history += [assistant(f"noise-{number} is done.")]
    return history


FACTS = {f"fact-{number}" for number in range(1, 9)}


def seen(text: str) -> set[str]:
    """The facts, noises, rules and tasks in an answer of the model."""
    assert "SEEN TWICE" not in text, text
    return set(re.findall(r"(?:fact|noise|rule|task)-[0-9]+", text))


def facts(text: str) -> set[str]:
    return {word for word in seen(text) if word.startswith("fact-")}


def noises(text: str) -> set[str]:
    return {word for word in seen(text) if word.startswith("noise-")}


# ── openai-python ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param, server.keys["key"]) as client:
        yield client


@contextmanager
def resent_output():
    """Ignore the warning of pydantic about user messages of a compaction that are sent back.

    The SDK declares all messages of `output` as messages of the assistant, so serializing one of the user warns about
    `input_text`, and is right otherwise. It is the same with OpenAI's own service.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
        yield


def test_openai_python_compacts_a_history_and_goes_on(client):
    whole = client.responses.create(model=MODEL, input=[*long_history(), user("What do you see?")], store=False)
    assert facts(whole.output_text) == FACTS
    assert noises(whole.output_text) == {f"noise-{number}" for number in range(1, 9)}

    compacted = client.responses.compact(model=MODEL, input=long_history(), instructions="Be brief.")

    assert compacted.object == "response.compaction"
    *messages, item = compacted.output
    assert {(message.type, message.role) for message in messages} == {("message", "user")}
    assert item.type == "compaction"
    assert item.id.startswith("cmp_")
    assert "fact" not in json.dumps([item.to_dict(warnings=False) for item in compacted.output])
    assert compacted.usage.input_tokens > 0
    assert compacted.usage.output_tokens > 0
    with resent_output():
        after = client.responses.create(
            model=MODEL, input=[*compacted.output, user("What do you see?")], instructions="Be brief.", store=False
        )
    assert facts(after.output_text) == FACTS
    assert noises(after.output_text) <= {"noise-8"}  # the newest call stays verbatim, within its budget


def test_openai_python_compacts_a_compacted_history_again(client):
    window: list[Any] = long_history()
    for number in range(20, 23):
        compacted = client.responses.compact(model=MODEL, input=window)
        dumped = [item.to_dict(warnings=False) for item in compacted.output]
        window = [*dumped, user(f"Then fact-{number}."), assistant(f"noise-{number} " * 50)]

    after = client.responses.create(model=MODEL, input=[*window, user("What do you see?")])

    assert facts(after.output_text) == FACTS | {"fact-20", "fact-21", "fact-22"}
    assert noises(after.output_text) <= {"noise-8", "noise-22"}


def test_openai_python_compacts_a_stored_response_and_its_raw_response_has_headers(client):
    first = client.responses.create(model=MODEL, input=long_history())
    second = client.responses.create(model=MODEL, input="And fact-9.", previous_response_id=first.id)

    raw = client.responses.with_raw_response.compact(model=MODEL, previous_response_id=second.id)
    compacted = raw.parse()

    assert raw.headers["x-request-id"].startswith("req_")
    assert json.loads(raw.text)["antwort:compaction"]["method"] == "summary"
    with resent_output():
        after = client.responses.create(model=MODEL, input=[*compacted.output, user("What do you see?")])
    assert facts(after.output_text) == FACTS | {"fact-9"}


@pytest.mark.parametrize("encode", [str, json.dumps], ids=["text", "JSON"])
def test_identifiers_pass_through_several_compactions(client, encode):
    output = encode("uploaded:\nfile-abcdefgh\nfile-ijklmnop\n" + "noise-1 " * 80)
    window: list[Any] = [user("Upload."), *call_and_output(1, output), assistant("Done.")]
    for number in range(2, 5):
        newest = call_and_output(number, f"noise-{number} " * 80)  # of the calls only this one stays verbatim
        compacted = client.responses.compact(model=MODEL, input=[*window, *newest])
        window = [item.to_dict(warnings=False) for item in compacted.output]

    after = client.responses.create(model=MODEL, input=[*window, user("Which ids?")])

    assert after.output_text.split() == ["file-abcdefgh", "file-ijklmnop"]  # the summaries contain no such id


# ── openai-agents ────────────────────────────────────────────────────────────────────────────────────────────────────


@function_tool
def look_up(query: str) -> str:
    """Look something up."""
    number = query.removeprefix("look up query-")
    return f"fact-{number} " + f"noise-{number} " * 50


@dataclass
class AgentSession:
    """An agent of openai-agents with a compaction session."""

    session: OpenAIResponsesCompactionSession
    agent: Agent
    stored: SQLiteSession

    async def run(self, text: str) -> str:
        config = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI
        return (await Runner.run(self.agent, text, session=self.session, run_config=config)).final_output

    async def stored_types(self) -> list[str]:
        return [str(item.get("type", "message")) for item in await self.stored.get_items()]


@pytest.fixture
async def agent_session(request, server, tmp_path):
    store, mode, trigger = request.param
    stored = SQLiteSession("session", tmp_path / "session.db")
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.keys["key"], max_retries=0) as client:
        agent = Agent(
            name="agent",
            instructions="rule-1: be brief.",
            model=OpenAIResponsesModel(MODEL, client),
            model_settings=ModelSettings(store=store),
            tools=[look_up],
        )
        session = OpenAIResponsesCompactionSession(
            "session",
            stored,
            client=client,
            model=MODEL,
            compaction_mode=mode,
            should_trigger_compaction=trigger,
        )
        yield AgentSession(session, agent, stored)
    stored.close()


def never(_: object) -> bool:
    return False


def at_eight(context: dict[str, Any]) -> bool:
    return len(context["compaction_candidate_items"]) >= 8


def mode_name(mode: tuple[bool, str, object]) -> str:
    return f"{'stored' if mode[0] else 'not stored'}, {mode[1]}"


AGENT_MODES = [(True, "auto"), (True, "previous_response_id"), (True, "input"), (False, "auto")]


@pytest.mark.anyio
@pytest.mark.parametrize("agent_session", [(*mode, never) for mode in AGENT_MODES], indirect=True, ids=mode_name)
async def test_openai_agents_forces_a_compaction_and_goes_on(agent_session):
    for number in range(1, 6):
        assert f"fact-{number}" in await agent_session.run(f"look up query-{number}")
    before = await agent_session.run("What do you see?")
    assert {f"noise-{number}" for number in range(1, 6)} <= seen(before)

    await agent_session.session.run_compaction({"force": True})

    types = await agent_session.stored_types()
    assert types.count("compaction") == 1
    assert set(types) == {"message", "compaction"}  # all calls are in the compaction item
    after = await agent_session.run("What do you see?")
    assert facts(after) == {f"fact-{number}" for number in range(1, 6)}
    assert "rule-1" in seen(after)
    assert noises(after) <= {"noise-5", "noise-77"}
    assert "fact-6" in await agent_session.run("look up query-6")
    assert facts(await agent_session.run("What do you see?")) == {f"fact-{number}" for number in range(1, 7)}


@pytest.mark.anyio
@pytest.mark.parametrize("agent_session", [(*mode, at_eight) for mode in AGENT_MODES], indirect=True, ids=mode_name)
async def test_openai_agents_compacts_by_itself_while_it_runs(agent_session):
    lengths: list[int] = []
    for number in range(1, 13):
        assert f"fact-{number}" in await agent_session.run(f"look up query-{number}")
        lengths.append(len(await agent_session.stored_types()))

    compactions = sum(later < earlier for earlier, later in pairwise(lengths))
    assert compactions >= 2
    after = await agent_session.run("What do you see?")
    assert facts(after) == {f"fact-{number}" for number in range(1, 13)}
    assert "noise-1" not in seen(after)


# ── coding agent ─────────────────────────────────────────────────────────────────────────────────────────────────────

TOOLS = [
    {
        "type": "function",
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        "strict": False,
    }
]
RULE = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rule-1: be brief."}]}


@dataclass
class CodingAgent:
    """A client that keeps its history itself and sends all of it with each request, over plain HTTP, without ids."""

    server: Server
    history: list[dict[str, Any]] = field(default_factory=lambda: [RULE])

    def ask(self, text: str) -> str:
        """Send a message, run the calls of the answers, and return the last answer."""
        self.history.append(user(text))
        while True:
            output = self._stream(self.history)
            assert all("id" not in item for item in output)
            self.history += output
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return output[-1]["content"][0]["text"]
            for call in calls:
                number = json.loads(call["arguments"])["query"].removeprefix("look up query-")
                result = f"fact-{number} " + f"noise-{number} " * 50
                self.history.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})

    def compact_with_trigger(self) -> None:
        """Trigger a compaction; the next window has the instructions, the messages of the user, and the item."""
        output = self._stream([*self.history, {"type": "compaction_trigger"}])
        assert [item["type"] for item in output] == ["compaction"]
        self.history = [RULE, *self._user_messages(), *output]

    def compact_with_endpoint(self) -> None:
        """The same, with the endpoint; the next window is its output."""
        body = {
            "model": MODEL,
            "input": self.history,
            "instructions": "Answer with what you see.",
            "tools": TOOLS,
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "text": {"verbosity": "low"},
            "service_tier": "auto",
            "prompt_cache_key": "session-1",
        }
        with self._http() as http:
            answer = http.post("/v1/responses/compact", json=body)
        assert answer.status_code == 200, answer.text
        self.history = [_without_id(item) for item in answer.json()["output"]]

    def _user_messages(self) -> list[dict[str, Any]]:
        return [item for item in self.history if item.get("role") == "user"]

    def _stream(self, input_items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The output items of a streamed response, without ids; its events are checked."""
        body = {
            "model": MODEL,
            "instructions": "Answer with what you see.",
            "input": input_items,
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "session-1",
        }
        with self._http() as http:
            answer = http.post("/v1/responses", json=body, headers={"accept": "text/event-stream"})
        assert answer.status_code == 200, answer.text
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line[:5] == "data:"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed", events[-1]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        return [_without_id(item) for item in done]

    def _http(self):
        return self.server.http(headers={"authorization": f"Bearer {self.server.keys['key']}"})


def _without_id(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is sent back. Encrypted reasoning replaces the text of the reasoning."""
    if item["type"] == "reasoning":
        assert item["encrypted_content"]
        return {"type": "reasoning", "summary": item["summary"], "encrypted_content": item["encrypted_content"]}
    return {name: value for name, value in item.items() if name not in {"id", "status"}}


@pytest.mark.parametrize("way", ["trigger", "endpoint"])
def test_a_coding_agent_goes_on_after_several_compactions(server, way):
    agent = CodingAgent(server)
    compact = agent.compact_with_trigger if way == "trigger" else agent.compact_with_endpoint
    agent.ask("task-1: note fact-100.")
    for number in range(1, 4):
        assert f"fact-{number}" in agent.ask(f"look up query-{number}")
    assert {"noise-1", "noise-2", "noise-3", "noise-77"} <= seen(agent.ask("What do you see?"))
    size = len(json.dumps(agent.history))

    compact()

    assert len(json.dumps(agent.history)) < size
    assert not [item for item in agent.history if item["type"] not in {"message", "compaction"}]
    answer = agent.ask("What do you see?")
    assert facts(answer) == {"fact-100", "fact-1", "fact-2", "fact-3"}
    assert noises(answer) <= {"noise-3"}
    for number in range(4, 7):
        assert f"fact-{number}" in agent.ask(f"look up query-{number}")

    compact()
    for number in range(7, 9):
        assert f"fact-{number}" in agent.ask(f"look up query-{number}")
    compact()

    answer = agent.ask("What do you see?")
    assert facts(answer) == {"fact-100", *(f"fact-{number}" for number in range(1, 9))}
    assert "rule-1" in seen(answer)  # `seen` fails if the rule or the task is visible twice
    assert noises(answer) <= {"noise-8"}


def test_the_stream_of_a_triggered_compaction_has_one_item(server):
    body = {
        "model": MODEL,
        "input": [RULE, *long_history(), {"type": "compaction_trigger"}],
        "store": False,
        "stream": True,
    }
    with server.http(headers={"authorization": f"Bearer {server.keys['key']}"}) as http:
        answer = http.post("/v1/responses", json=body)

    lines = answer.text.splitlines()
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event:")] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
        "response.completed",
    ]
    assert "fact" not in answer.text


@pytest.mark.parametrize("position", ["before", "after"])
def test_developer_messages_that_are_sent_again_are_seen_once(server, position):
    agent = CodingAgent(server)
    agent.ask("task-1: note fact-1.")
    agent.compact_with_trigger()
    item = agent.history[-1]
    changed = {"type": "message", "role": "developer", "content": "rule-2: be polite."}
    agent.history = [RULE, changed, item] if position == "before" else [item, RULE, changed]

    answer = agent.ask("What do you see?")

    assert seen(answer) == {"fact-1", "task-1", "rule-1", "rule-2"}
