"""The behaviours of a tool: one row of the table. Requests are shared, so that a row costs as few as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from antwort.conformance.checks import Inconclusive, Unsupported, behaviour, behaviours_of
from antwort.conformance.client import ApiClient, Json, Reply, quoted
from antwort.conformance.endpoints.base import check_page
from antwort.conformance.grammar import (
    SentEvent,
    Violation,
    check_fold,
    check_grammar,
    check_item_keys,
    check_response_keys,
    check_sequence,
    require,
    require_equal,
)
from antwort.conformance.target import Once, Target, message, require_completed
from antwort.conformance.tools.cases import FOLLOW_UP, NO_TOOL, ToolCase
from antwort.conformance.tools.refusals import is_refusal

UNKNOWN: Final = "conformance_unknown"
_ATTEMPTS: Final = 2
_RUNNING: Final = ("queued", "in_progress")
_SECRETS: Final = ("headers", "authorization", "server_url")
"""Fields of a declaration that a server may hide."""


class ToolChecks:
    """The checks of one tool."""

    def __init__(self, case: ToolCase, target: Target) -> None:
        self.area = case.name
        self._case = case
        self._target = target

    @property
    def client(self) -> ApiClient:
        return self._target.client

    def behaviours(self) -> Mapping[str, Callable[[], None]]:
        return {name: getattr(self, BEHAVIOURS[name]) for name in applicable(self._case)}

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @Once
    def tools(self) -> list[Json]:
        """The declarations."""
        return self._case.declare(self._target)

    @Once
    def response(self) -> Json:
        """The answer to the prompt, stored and not streamed."""
        return self._ask(self._body(self._case.prompt))

    @Once
    def events(self) -> list[SentEvent]:
        """The stream of the same request, with what `include` adds to hosted calls."""
        _ = self.response  # whether the tool is supported
        more = {"include": [self._case.include.value]} if self._case.include and self._case.is_hosted else {}
        return self._stream(self._body(self._case.prompt, stream=True, **more))

    @Once
    def background_events(self) -> list[SentEvent]:
        """The stream of a response in the background."""
        _ = self.response
        return self._stream(self._body(self._case.prompt, stream=True, background=True))

    def _body(self, prompt: Any, **more: Any) -> Json:
        case = self._case
        tools: Json = {"tools": self.tools} if self.tools else {}
        choice: Json = {} if case.choice is None else {"tool_choice": case.choice}
        return self._target.request(prompt, **tools, **choice, **(case.fields or {}), **more)

    def _ask(self, body: Json) -> Json:
        """A completed response in which the model did what the prompt says; asked twice at most."""
        reasons: list[Exception] = []
        while len(reasons) < _ATTEMPTS:
            reply = self._target.create(body)
            self._raise_if_refused(reply)
            response = reply.ok()
            check_response_keys(response)
            if self._has_item(response):
                require_completed(response)
                return response
            reasons.append(self._inconclusive(response))
        raise reasons[0]

    def _stream(self, body: Json) -> list[SentEvent]:
        reasons: list[Exception] = []
        while len(reasons) < _ATTEMPTS:
            events = self._target.create(body).events()
            require(events, "a stream has events")
            items = [event["item"] for event in events if "item" in event]
            final: Json | None = events[-1].get("response")
            if final is None or self._has_item({"output": items}):  # the grammar reports a stream without its end
                return events
            reasons.append(self._inconclusive(final))
        raise reasons[0]

    def _has_item(self, response: Json) -> bool:
        return any(item["type"] == self._case.item for item in response["output"])

    def _inconclusive(self, response: Json) -> Exception:
        if self._case.item == "message":
            return Inconclusive(f"the model sent no message; the response has the status {response['status']}")
        if self._case.item == "reasoning":
            return Inconclusive("the model sent no reasoning item")
        error: Json | None = response.get("error")
        return Inconclusive(f"the model did not call the tool{': ' + error['message'] if error else ''}")

    def _raise_if_refused(self, reply: Reply) -> None:
        """A 400 that refuses the tool, or the parameter, means that the server does not support it."""
        if reply.status == 400:
            error = reply.error(400)
            if is_refusal(error, {str(tool["type"]) for tool in self.tools}, self._case.fields or ()):
                raise Unsupported(error["message"])

    def _call(self, response: Json) -> Json:
        return next(item for item in response["output"] if item["type"] == self._case.item)

    def _answers(self, response: Json) -> list[Json]:
        """The items with which the client answers the calls of a response."""
        output = self._case.output
        calls = [item for item in response["output"] if item["type"] == self._case.item]
        return [output(item) for item in calls] if output is not None else []

    # ── behaviours ───────────────────────────────────────────────────────────────────────────────────────────────────

    @behaviour
    def echoed(self) -> None:
        """The response has the declared tools and the tool choice."""
        echoed = self.response["tools"]
        require_equal(len(echoed), len(self.tools), "the number of tools in the response")
        for tool, declared in zip(echoed, self.tools, strict=True):
            for key, value in declared.items():
                if key not in ("environment", "container", *_SECRETS):
                    require_equal(tool.get(key), value, f"`{key}` of the tool in the response")
        chosen, choice = self.response["tool_choice"], self._case.choice
        if isinstance(chosen, dict) and isinstance(choice, dict):  # a server may add keys
            chosen = {key: value for key, value in chosen.items() if key in choice}  # pyright: ignore[reportUnknownVariableType] - any JSON
        require_equal(chosen, choice, "`tool_choice` of the response")

    @behaviour
    def item(self) -> None:
        """The items have the keys of their types, and are completed."""
        for item in self.response["output"]:
            check_item_keys(item)
            require(item.get("status") in ("completed", None), "a completed item", item)
        if self._case.output is None:
            require_equal(self.response["output"][-1]["type"], "message", "the type of the last item")
        if self._case.verify is not None:
            self._case.verify(self.response)

    @behaviour
    def stream(self) -> None:
        """Order and keys of the events."""
        check_grammar(self.events)

    @behaviour
    def numbers(self) -> None:
        """Sequence numbers without gaps."""
        check_sequence(self.events)

    @behaviour
    def fold(self) -> None:
        """The final response has the items of the events."""
        check_fold(self.events)

    @behaviour
    def include(self) -> None:
        """`include` adds the field, which is empty without it."""
        inclusion = self._case.include
        assert inclusion is not None  # noqa: S101 - only such cases have this check
        if inclusion.is_hidden:
            hidden = inclusion.field(self._call(self.response))
            require(not hidden, f"no value of {inclusion.value} without include", hidden)
        if self._case.is_hosted:
            response = self.events[-1]["response"]
        else:
            reply = self._target.create(self._body(self._case.prompt, include=[inclusion.value]))
            if reply.status == 400 and is_refusal(reply.error(400), (), ("include", inclusion.value)):
                raise Unsupported(reply.error(400)["message"])
            response = reply.ok()
            if not self._has_item(response):
                raise self._inconclusive(response)
        require(inclusion.field(self._call(response)), f"a value of {inclusion.value}", self._call(response))

    @behaviour
    def stored(self) -> None:
        """The response can be retrieved, and is the same."""
        created = self.response
        found = self.client.get(f"/responses/{quoted(created['id'])}").ok()
        for key in ("id", "object", "created_at", "status", "model", "output", "usage", "tools", "metadata"):
            require_equal(stable(found.get(key)), stable(created.get(key)), f"`{key}`, as it was created")

    @behaviour
    def inputs(self) -> None:
        """The input items are listed, each with an id."""
        page = self.client.get(f"/responses/{quoted(self.response['id'])}/input_items", order="asc").ok()
        check_page(page)
        require(len(page["data"]) == 1, "one input item", page["data"])
        item = page["data"][0]
        require_equal((item.get("type"), item.get("role")), ("message", "user"), "`type` and `role` of the input item")
        content = item["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        require_equal(text, self._case.prompt, "the text of the input item")

    @behaviour
    def chained(self) -> None:
        """A request can continue the response by its id."""
        answers = self._answers(self.response)
        body = self._follow_up(answers or [message(FOLLOW_UP)], previous_response_id=self.response["id"])
        response = self._target.create(body).ok()
        self._check_follow_up(response)
        require_equal(response["previous_response_id"], self.response["id"], "`previous_response_id`")

    @behaviour
    def replayed(self) -> None:
        """The items can be sent back as input of a request that stores nothing, and that cannot be retrieved."""
        answers = self._answers(self.response)
        history = [message(self._case.prompt), *self.response["output"], *(answers or [message(FOLLOW_UP)])]
        response = self._target.create(self._follow_up(history, store=False)).ok()
        self._check_follow_up(response)
        self.client.get(f"/responses/{quoted(response['id'])}").error(404)

    def _follow_up(self, items: list[Json], **more: Any) -> Json:
        """The next request. Its tool choice leaves the model free."""
        body = {**self._body(items, **more), "tool_choice": "auto"}
        if not self.tools:
            del body["tool_choice"]
        return body

    def _check_follow_up(self, response: Json) -> None:
        check_response_keys(response)
        require_completed(response)
        for item in response["output"]:
            check_item_keys(item)
        if self._case.verify_next is not None:
            self._case.verify_next(self._call(self.response), response)

    @behaviour
    def forced(self) -> None:
        """`tool_choice` decides, whatever the prompt says; a choice of a tool that is not declared is refused."""
        _ = self.response
        response = self._target.create(self._body(f"{self._case.prompt} {NO_TOOL}")).ok()
        check_response_keys(response)
        if not self._has_item(response):
            if response["status"] != "completed":
                raise self._inconclusive(response)
            types = [item["type"] for item in response["output"]]
            raise Violation(f"an item {self._case.item}, which `tool_choice` demands", types)
        response = self._target.create({**self._body(self._case.prompt), "tool_choice": "none"}).ok()
        require(not self._has_item(response), f"no {self._case.item} with tool_choice: none", response["output"])
        body = self._target.request(self._case.prompt, tool_choice=self._case.choice)
        self._target.create(body).error(400)

    @behaviour
    def max_calls(self) -> None:
        """`max_tool_calls` limits the hosted calls of a response."""
        _ = self.response
        reply = self._target.create(self._body(self._case.twice_prompt, max_tool_calls=1))
        response = reply.ok()
        check_response_keys(response)
        calls = [item for item in response["output"] if item["type"] == self._case.item]
        require(len(calls) <= 1, "at most one call with max_tool_calls: 1", [item["type"] for item in calls])
        require_equal(response["max_tool_calls"], 1, "`max_tool_calls` of the response")
        if not calls:
            raise self._inconclusive(response)

    @behaviour
    def background(self) -> None:
        """A response in the background can be polled until it ends."""
        _ = self.response
        begun = self._target.create(self._body(self._case.prompt, background=True)).ok()
        require(begun["status"] in _RUNNING, f"a status of {_RUNNING}", begun["status"])
        require(begun["background"] is True, '"background": true', begun["background"])
        path = f"/responses/{quoted(begun['id'])}"
        response = self._target.poll(path, lambda response: response["status"] not in _RUNNING)
        if not self._has_item(response):
            raise self._inconclusive(response)
        check_response_keys(response)
        require_completed(response)
        for item in response["output"]:
            check_item_keys(item)

    @behaviour
    def resumed(self) -> None:
        """The stream of a response in the background can be read again from any number on."""
        events = self.background_events
        check_sequence(events)
        check_grammar(events, background=True)
        after = len(events) // 2
        path = f"/responses/{quoted(events[0]['response']['id'])}"
        rest = self.client.get(path, stream=True, starting_after=after).events()
        require_equal(_kinds(rest), _kinds(events[after + 1 :]), "the rest of the stream")
        require_equal(stable(rest), stable(events[after + 1 :]), "the rest of the stream")

    @behaviour
    def unknown(self) -> None:
        """An unknown parameter, of the tool if there is one, is refused by name."""
        _ = self.response
        body = self._body(self._case.prompt)
        if self.tools:
            body["tools"] = [{**self.tools[0], UNKNOWN: 1}]
        else:
            body[UNKNOWN] = 1
        error = self._target.create(body).error(400)
        require_equal(error["type"], "invalid_request_error", "`type` of the error")
        require(UNKNOWN in f"{error['param']} {error['message']}", f"an error that names {UNKNOWN}", error)

    @behaviour
    def failure(self) -> None:
        """What fails inside the tool is an item that shows it, and the response goes on."""
        _ = self.response
        more = {"include": [self._case.include.value]} if self._case.include else {}
        response = self._target.create(self._body(self._case.failing_prompt, **more)).ok()
        check_response_keys(response)
        if not self._has_item(response):
            raise self._inconclusive(response)
        require_completed(response)
        for item in response["output"]:
            check_item_keys(item)
        if self._case.verify_failure is not None:
            self._case.verify_failure(response)


BEHAVIOURS: Final[Mapping[str, str]] = behaviours_of(ToolChecks)
"""The behaviours, and the methods that check them."""


def applicable(case: ToolCase) -> list[str]:
    """The behaviours that apply to a tool."""
    applies = {
        "echoed": case.choice is not None and case.is_echoed,
        "include": case.include is not None,
        "forced": isinstance(case.choice, dict),
        "max-calls": case.twice_prompt is not None,
        "failure": case.failing_prompt is not None,
    }
    return [name for name in BEHAVIOURS if applies.get(name, True)]


def _kinds(events: list[SentEvent]) -> list[str]:
    return [event["type"] for event in events]


def stable(value: Any) -> Any:
    """A value without what a server may send differently each time: padding, and what is encrypted again."""
    match value:
        case dict():
            fields = cast("Json", value).items()
            return {name: stable(one) for name, one in fields if name not in ("obfuscation", "encrypted_content")}
        case list():
            return [stable(one) for one in cast("list[Any]", value)]
        case _:
            return value
