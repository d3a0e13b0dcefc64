from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from weakincentives.adapters import ToolOutput
from weakincentives.adapters.turn import ClientRunCall, ModelReply, ToolCall
from weakincentives.errors import PromptEvaluationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, ProviderTool, Tool, ToolContext, ToolResult
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session, ToolInvoked
from weakincentives.testing import ScriptedAdapter, call, calls, native, say


@dataclass(frozen=True)
class Note:
    text: Annotated[str, "What to write down."]
    urgent: bool = False


@dataclass
class Stored:  # mutable, and without render()
    count: int


def store(params: Note, *, context: ToolContext) -> ToolResult[Stored]:
    context.session.dispatch(params)
    context.filesystem.write_text("notes.txt", params.text)
    if params.text == "explode":
        raise RuntimeError("boom")
    if params.text == "refuse":
        return ToolResult.error("Not today.")
    if params.text == "interrupt":
        raise KeyboardInterrupt
    return ToolResult("Stored.", Stored(len(context.session[Note].all())))


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


def returns_text(params: None, *, context: ToolContext) -> ToolResult[None]:
    return "not a result"  # pyright: ignore[reportReturnType] - the point of the test


@dataclass
class RenderFails:
    def render(self) -> str:
        raise RuntimeError("no words")


def unrenderable(params: None, *, context: ToolContext) -> ToolResult[RenderFails]:
    context.session.dispatch(Note("rendered"))
    return ToolResult.ok(RenderFails())


TOOLS: tuple[Tool[Any, Any], ...] = (
    Tool[Note, Stored](name="store", description="Store a note.", handler=store),
    Tool[None, None](name="ping", description="Answer.", handler=ping),
    Tool[None, None](name="returns_text", description="Return text.", handler=returns_text),
    Tool[None, RenderFails](
        name="unrenderable", description="Return a value whose render raises.", handler=unrenderable
    ),
)


class Run:
    """One evaluation with scripted replies, with its session and filesystem."""

    def __init__(self, *replies: ModelReply) -> None:
        self.session = Session()
        self.filesystem = InMemoryFilesystem()
        self.filesystem.write_text("notes.txt", "before")
        self.adapter = ScriptedAdapter([*replies, say("done")])
        self.prompt = Prompt[str](
            ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template="Do.", tools=TOOLS)]
        )

    def evaluate(self) -> Run:
        resources = ResourceRegistry.build({Filesystem: self.filesystem})
        self.adapter.evaluate(self.prompt, session=self.session, resources=resources)
        return self

    @property
    def events(self) -> tuple[ToolInvoked, ...]:
        return self.session[ToolInvoked].all()

    @property
    def outputs(self) -> list[ToolOutput]:
        return [item for item in self.adapter.requests[-1].history if isinstance(item, ToolOutput)]


def test_tool_runs_with_typed_params_and_its_result_is_sent_to_the_model():
    run = Run(call("store", text="hello", urgent=None)).evaluate()

    (event,) = run.events
    assert event.params == Note("hello", urgent=False)  # null stands for the default
    assert event.result.value == Stored(1)
    assert (event.origin, event.call_id) == ("client", "call_0_store")
    assert run.outputs == [ToolOutput("call_0_store", "store", 'Stored.\n\n{"count":1}', success=True, value=Stored(1))]
    assert event.rendered_output == run.outputs[0].text


@pytest.mark.parametrize("arguments", ["{}", "", '{"ignored": 1}', "null"])
def test_tool_without_params_is_called_with_none(arguments: str):
    run = Run(ModelReply(calls=(ToolCall("c", "ping", arguments),))).evaluate()

    assert run.outputs == [ToolOutput("c", "ping", "pong", success=True)]
    assert run.events[0].params is None


@pytest.mark.parametrize("text, message", [("explode", "RuntimeError: boom"), ("refuse", "Not today.")])
def test_failed_tool_is_rolled_back_and_its_event_is_kept(text: str, message: str):
    run = Run(call("store", text="first"), call("store", text=text)).evaluate()

    assert run.session[Note].all() == (Note("first"),)
    assert run.filesystem.read_text("notes.txt") == "first"
    assert [event.success for event in run.events] == [True, False]
    assert message in run.outputs[-1].text
    assert not run.outputs[-1].success


def test_failed_rollback_ends_the_evaluation_after_the_other_rollbacks():
    class Stuck:
        def snapshot(self) -> object:
            return None

        def restore(self, snapshot: object, /) -> None:
            raise OSError("disk full")

    run = Run(call("store", text="refuse"))
    resources = ResourceRegistry.build({Stuck: Stuck(), Filesystem: run.filesystem})
    with pytest.raises(PromptEvaluationError, match=r"rolled back in Stuck \(OSError: disk full\)") as caught:
        run.adapter.evaluate(run.prompt, session=run.session, resources=resources)

    assert caught.value.phase == "tool"
    assert run.filesystem.read_text("notes.txt") == "before"


def test_interrupted_tool_is_rolled_back():
    run = Run(call("store", text="interrupt"))
    with pytest.raises(KeyboardInterrupt):
        run.evaluate()

    assert run.session[Note].all() == ()
    assert run.filesystem.read_text("notes.txt") == "before"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ('{"text": 3}', "Expected `str`, got `int` (at $.text)"),
        ('{"text": "x", "extra": 1}', "unknown key 'extra'"),
        ('{"text": ', "not valid JSON"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `text`"),
    ],
)
def test_invalid_arguments_are_a_failed_result_and_the_handler_does_not_run(arguments: str, message: str):
    run = Run(ModelReply(calls=(ToolCall("c", "store", arguments),))).evaluate()

    assert message in run.outputs[0].text
    assert "Correct them and try again." in run.outputs[0].text
    assert run.events[0].params == arguments
    assert run.session[Note].all() == ()


def test_unknown_tool_is_a_failed_result_that_lists_the_tools():
    run = Run(call("rm_rf")).evaluate()

    assert run.outputs[0].text == "Unknown tool 'rm_rf'. Tools: store, ping, returns_text, unrenderable."
    assert run.events[0].success is False


def test_handler_that_returns_no_tool_result_is_a_failed_call():
    run = Run(calls(("returns_text", {}), ("ping", {}))).evaluate()

    assert "returned str, not a ToolResult" in run.outputs[0].text
    assert run.outputs[1].text == "pong"


def test_result_whose_render_raises_is_a_failed_call():
    run = Run(calls(("unrenderable", {}), ("ping", {}))).evaluate()

    assert run.outputs[0].text == "Tool unrenderable failed: RuntimeError: no words"
    assert [event.success for event in run.events] == [False, True]
    assert run.session[Note].all() == ()


def test_handler_receives_the_context():
    seen: list[ToolContext] = []

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        seen.append(context)
        return ToolResult("ok")

    tool = Tool[None, None](name="look", description="Look.", handler=look)
    prompt = Prompt[str](ns="n", key="k", sections=[MarkdownSection(title="T", key="t", template="x", tools=[tool])])
    session = Session()
    adapter = ScriptedAdapter([call("look"), say("done")])
    adapter.evaluate(prompt, session=session, resources=ResourceRegistry.build({int: 3}))

    (context,) = seen
    assert context.session is session
    assert context.adapter is adapter
    assert context.prompt.name == "k"
    assert context.rendered_prompt.find_tool("look") is tool
    assert context.resources.get(int) == 3
    assert (context.deadline, context.budget_tracker) == (None, None)


@dataclass(frozen=True)
class Found:
    hits: int


def provider_run(tool: ProviderTool[Any, Any, Any], *, params: object = None, value: object = None) -> Run:
    """A run in which the provider runs its tool `web_search`."""
    run = Run(native("web_search", params=params, result=ToolResult("raw", value), provider="scripted", text="done"))
    run.prompt = Prompt[str](
        ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template="Do.", tools=[tool])]
    )
    return run.evaluate()


def search_tool(**hooks: Any) -> ProviderTool[Any, Any, Any]:
    return ProviderTool[Note, Found, None](
        name="web_search", description="Search.", provider="scripted", config=None, **hooks
    )


def test_hook_of_a_provider_tool_creates_the_result():
    def hook(found: Found, context: ToolContext) -> ToolResult[Found]:
        context.session.dispatch(Note(f"{found.hits} hits"))
        return ToolResult("Nicely said.", found)

    def handler(params: Note, *, context: ToolContext) -> ToolResult[Found]:
        raise AssertionError("a hook comes first")

    run = provider_run(search_tool(handle_provider_output=hook, handler=handler), value=Found(3))

    (event,) = run.events
    assert event.result == ToolResult("Nicely said.", Found(3))
    assert (event.origin, event.rendered_output) == ("provider", 'Nicely said.\n\n{"hits":3}')
    assert run.session[Note].all() == (Note("3 hits"),)


def test_without_a_hook_the_handler_receives_the_params():
    def handler(params: Note, *, context: ToolContext) -> ToolResult[Found]:
        return ToolResult(f"asked for {params.text}", Found(1))

    run = provider_run(search_tool(handler=handler), params=Note("tea"))

    assert run.events[0].result.message == "asked for tea"


def test_without_hook_and_handler_the_providers_result_is_kept():
    assert provider_run(search_tool(), value=Found(3)).events[0].result == ToolResult("raw", Found(3))


def test_failing_hook_is_a_failed_result_and_is_rolled_back():
    def hook(found: Found, context: ToolContext) -> ToolResult[Found]:
        context.session.dispatch(Note("half"))
        raise ValueError("odd")

    run = provider_run(search_tool(handle_provider_output=hook), value=Found(3))

    assert not run.events[0].success
    assert "ValueError: odd" in run.events[0].rendered_output
    assert run.session[Note].all() == ()


def test_provider_result_whose_render_raises_is_a_failed_call():
    run = provider_run(search_tool(), value=RenderFails())

    (event,) = run.events
    assert (event.success, event.rendered_output) == (False, "Tool web_search failed: RuntimeError: no words")


def client_run_reply(run: Any, *, rollback: bool = True) -> ModelReply:
    shell_call = ClientRunCall(
        call_id="c1",
        name="shell",
        capability="shell",
        provider="acme",
        params=Note("ls"),
        run=run,
        format_output=lambda output: {},
        rollback_on_failure=rollback,
    )
    return ModelReply(calls=(shell_call,))


def write(context: ToolContext, result: ToolResult[Any]) -> ToolResult[Any]:
    context.filesystem.write_text("notes.txt", "after")
    return result


def test_client_run_call_runs_locally_and_its_event_names_the_provider():
    run = Run(client_run_reply(lambda context: write(context, ToolResult("ok", Stored(3))))).evaluate()

    (event,) = run.events
    assert (event.origin, event.provider, event.capability) == ("client", "acme", "shell")
    assert (event.name, event.params, event.call_id) == ("shell", Note("ls"), "c1")
    assert run.outputs == [ToolOutput("c1", "shell", 'ok\n\n{"count":3}', success=True, value=Stored(3))]
    assert run.filesystem.read_text("notes.txt") == "after"


def shell_tool(**hooks: Any) -> Prompt[Any]:
    tool = ProviderTool[Note, Stored, None](
        name="shell", description="Run.", provider="scripted", config=None, capability="shell", **hooks
    )
    return Prompt(ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template="Do.", tools=[tool])])


def test_hook_is_applied_to_a_client_run_call():
    def hook(stored: Stored, context: ToolContext) -> ToolResult[Stored]:
        context.session.dispatch(Note("hooked"))
        return ToolResult("Only the count.", Stored(stored.count + 1))

    run = Run(client_run_reply(lambda context: write(context, ToolResult("ok", Stored(3)))))
    run.prompt = shell_tool(handle_provider_output=hook)
    run.evaluate()

    assert run.events[0].result == ToolResult("Only the count.", Stored(4))
    assert run.outputs[0].text == 'Only the count.\n\n{"count":4}'
    assert run.session[Note].all() == (Note("hooked"),)
    assert run.filesystem.read_text("notes.txt") == "after"


def test_failing_hook_rolls_back_the_client_run_call():
    run = Run(client_run_reply(lambda context: write(context, ToolResult("ok", Stored(3)))))
    run.prompt = shell_tool(handle_provider_output=lambda stored, context: ToolResult.error("No."))
    run.evaluate()

    assert [event.success for event in run.events] == [False]
    assert run.filesystem.read_text("notes.txt") == "before"


@pytest.mark.parametrize("rollback, content", [(True, "before"), (False, "after")])
def test_failed_client_run_call_is_rolled_back_unless_disabled(rollback: bool, content: str):
    run = Run(
        client_run_reply(lambda context: write(context, ToolResult.error("exit 1")), rollback=rollback)
    ).evaluate()

    assert [event.success for event in run.events] == [False]
    assert run.filesystem.read_text("notes.txt") == content


def test_exception_of_a_client_run_call_is_a_failed_result():
    def explode(context: ToolContext) -> ToolResult[Any]:
        raise RuntimeError("boom")

    run = Run(client_run_reply(explode, rollback=False)).evaluate()

    assert run.outputs[0].text == "Tool shell failed: RuntimeError: boom"
    assert run.outputs[0].value is None
