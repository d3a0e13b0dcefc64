"""`ContainerSource`: the calls of its methods during an evaluation, with a section that records them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_responses_api import FakeResponsesApi, error, function_call, message, response, responses_api

from weakincentives.adapters.openai import (
    AutoContainerConfig,
    CodeInterpreterConfig,
    ContainerSource,
    EvaluationScope,
    OpenAICodeInterpreterSection,
    OpenAIHostedToolsConfig,
    ShellConfig,
)
from weakincentives.deadlines import Deadline
from weakincentives.errors import NativeToolError, PromptEvaluationError, ProviderFault, WinkError
from weakincentives.prompt import MarkdownSection, Prompt, Section, SectionVisibility, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolInvoked

CODE = OpenAIHostedToolsConfig(code_interpreter=True)
EXPIRED = error(400, "Container is expired.")


class Workspace(Section[None]):
    """A container source that records its calls."""

    def __init__(self, key: str = "workspace", max_containers: int = 9, **options: Any) -> None:
        self.calls: list[str] = []
        self.scopes: list[EvaluationScope] = []
        self.created = 0
        self.is_open = False
        self.max_containers = max_containers
        super().__init__(title="Workspace", key=key, **options)

    def render(self, params: object, depth: int, number: str) -> str:
        return "Files are in /mnt/data."

    def open_container(self, scope: EvaluationScope) -> str:
        self.scopes.append(scope)
        if not self.is_open:
            if self.created == self.max_containers:
                raise WinkError("no more containers")
            self.created += 1
            self.is_open = True
        self.calls.append(f"open {self.created}")
        return f"cntr_{self.created}"

    def container_note(self, *, replaced: bool) -> str | None:
        return None

    def container_expired(self, container_id: str, scope: EvaluationScope) -> None:
        self.calls.append(f"expired {container_id}")
        self.is_open = False

    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        self.calls.append(f"used {container_id}")


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


PING = Tool[None, None](name="ping", description="Answer.", handler=ping)
TASK = MarkdownSection(title="Task", key="task", template="Do it.", tools=[PING])


def evaluate(api: FakeResponsesApi, *sections: Section[Any], hosted: Any = CODE, **options: Any) -> Any:
    prompt = Prompt(ns="n", key="k", sections=[*sections, TASK])
    return api.adapter(hosted_tools=hosted).evaluate(prompt, session=Session(), **options)


def code_call(container: str) -> dict[str, Any]:
    outputs = [{"type": "logs", "logs": "5"}]
    return {"id": "ci_1", "type": "code_interpreter_call", "code": "x", "container_id": container, "outputs": outputs}


def containers(api: FakeResponsesApi) -> list[Any]:
    return [tool["container"] for body in api.bodies for tool in body["tools"] if tool["type"] == "code_interpreter"]


def test_source_methods_are_called_for_every_request():
    workspace = Workspace()
    with responses_api(response(function_call("ping")), response(message("Done."))) as api:
        deadline = Deadline.after(60)
        evaluate(api, workspace, deadline=deadline)

    assert isinstance(workspace, ContainerSource)
    assert workspace.calls == ["open 1", "used cntr_1", "open 1", "used cntr_1"]
    assert containers(api) == ["cntr_1", "cntr_1"]
    scope = workspace.scopes[0]
    assert scope.client.max_retries == 0
    assert (scope.deadline, type(scope.session)) == (deadline, Session)


def test_expired_container_is_replaced_and_scrubbed_from_history():
    workspace = Workspace()
    session = Session()
    prompt = Prompt(ns="n", key="k", sections=[workspace, TASK])
    first = response({"id": "rs_1", "type": "reasoning", "summary": []}, code_call("cntr_1"), function_call("ping"))
    with responses_api(first, EXPIRED, response(message("Done."))) as api:
        answer = api.adapter(hosted_tools=CODE).evaluate(prompt, session=session)

    assert answer.text == "Done."
    assert workspace.calls == ["open 1", "used cntr_1", "open 1", "expired cntr_1", "open 2", "used cntr_2"]
    assert containers(api) == ["cntr_1", "cntr_1", "cntr_2"]
    assert b"cntr_1" not in api.requests[-1].raw
    kinds = [item["type"] for item in api.bodies[-1]["input"]]
    assert kinds == ["message", "message", "function_call", "function_call_output"]
    assert [event.name for event in session[ToolInvoked].all()] == ["code_interpreter", "ping"]


def test_error_of_open_container_is_raised():
    workspace = Workspace(max_containers=1)
    with responses_api(EXPIRED) as api, pytest.raises(WinkError, match="no more containers"):
        evaluate(api, workspace)

    assert workspace.calls == ["open 1", "expired cntr_1"]


def test_second_expiry_in_one_request_is_an_error():
    workspace = Workspace()
    with (
        responses_api(*[EXPIRED] * 9) as api,
        pytest.raises(PromptEvaluationError, match="Container is expired") as caught,
    ):
        evaluate(api, workspace)

    assert caught.value.phase == "request"
    assert containers(api) == ["cntr_1", "cntr_2"]


def test_other_400_is_not_treated_as_expiry():
    workspace = Workspace()
    with responses_api(error(400, "Unknown parameter")) as api, pytest.raises(PromptEvaluationError):
        evaluate(api, workspace)

    assert workspace.calls == ["open 1"]


def test_disabled_and_closed_sections_are_not_called():
    disabled = Workspace(enabled=lambda: False)
    closed = Workspace("closed", summary="Files.", visibility=SectionVisibility.SUMMARY)
    with responses_api(response(message("Done."))) as api:
        evaluate(api, disabled, closed)

    assert disabled.calls == closed.calls == []
    assert containers(api) == [{"type": "auto", "memory_limit": "1g"}]


def test_opened_section_supplies_the_container():
    closed = Workspace("closed", summary="Files.", visibility=SectionVisibility.SUMMARY)
    with responses_api(response(function_call("open_section", path="closed")), response(message("Done."))) as api:
        evaluate(api, closed)

    assert containers(api) == [{"type": "auto", "memory_limit": "1g"}, "cntr_1"]


def test_source_without_a_container_tool_is_refused_before_a_request():
    workspace = Workspace()
    with (
        responses_api(response(message("Done."))) as api,
        pytest.raises(NativeToolError, match=r"enable code_interpreter, such as .*code_interpreter=True"),
    ):
        evaluate(api, workspace, hosted=OpenAIHostedToolsConfig(web_search=True))

    assert (api.requests, workspace.calls) == ([], [])


def test_shell_shares_the_container():
    hosted = OpenAIHostedToolsConfig(code_interpreter=True, others=(ShellConfig(AutoContainerConfig()),))
    with responses_api(response(message("Done."))) as api:
        evaluate(api, Workspace(), hosted=hosted)

    assert api.bodies[0]["tools"][1:] == [
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
    ]


@pytest.mark.parametrize(
    "sections, hosted, expected",
    [
        ([Workspace("a"), Workspace("b")], CODE, "sections 'a' and 'b' both supply a container"),
        (
            [Workspace(), OpenAICodeInterpreterSection(default_params=CodeInterpreterConfig("cntr_9"))],
            None,
            "container is 'cntr_9', .*section 'workspace' supplies one",
        ),
    ],
)
def test_two_containers_for_one_tool_are_refused(sections, hosted, expected):
    with responses_api() as api, pytest.raises(NativeToolError, match=expected):
        evaluate(api, *sections, hosted=hosted)

    assert api.requests == []


class Broken(Workspace):
    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        raise ProviderFault("the list of files did not come", status=500)


def test_fault_in_container_used_does_not_repeat_the_request():
    with responses_api(response(message("Done.")), response(message("Twice."))) as api:
        with pytest.raises(PromptEvaluationError, match="files of container cntr_1 were not listed: the list"):
            evaluate(api, Broken())
        assert len(api.bodies) == 1
