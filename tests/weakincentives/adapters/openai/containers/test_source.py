"""The seam, with a section that does nothing but take part."""

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
    """Keeps a list of what it was told."""

    def __init__(self, key: str = "workspace", most: int = 9, **options: Any) -> None:
        self.heard: list[str] = []
        self.scopes: list[EvaluationScope] = []
        self.made = 0
        self.live = False
        self.most = most
        super().__init__(title="Workspace", key=key, **options)

    def render(self, params: object, depth: int, number: str) -> str:
        return "Files are in /mnt/data."

    def open_container(self, scope: EvaluationScope) -> str:
        self.scopes.append(scope)
        if not self.live:
            if self.made == self.most:
                raise WinkError("no more containers")
            self.made += 1
            self.live = True
        self.heard.append(f"open {self.made}")
        return f"cntr_{self.made}"

    def container_note(self, *, replaced: bool) -> str | None:
        return None

    def container_expired(self, container_id: str, scope: EvaluationScope) -> None:
        self.heard.append(f"expired {container_id}")
        self.live = False

    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        self.heard.append(f"used {container_id}")


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


PING = Tool[None, None](name="ping", description="FakeResponse.", handler=ping)
TASK = MarkdownSection(title="Task", key="task", template="Do it.", tools=[PING])


def evaluate(api: FakeResponsesApi, *sections: Section[Any], hosted: Any = CODE, **options: Any) -> Any:
    prompt = Prompt(ns="n", key="k", sections=[*sections, TASK])
    return api.adapter(hosted_tools=hosted).evaluate(prompt, session=Session(), **options)


def code_call(container: str) -> dict[str, Any]:
    outputs = [{"type": "logs", "logs": "5"}]
    return {"id": "ci_1", "type": "code_interpreter_call", "code": "x", "container_id": container, "outputs": outputs}


def containers(api: FakeResponsesApi) -> list[Any]:
    return [tool["container"] for body in api.bodies for tool in body["tools"] if tool["type"] == "code_interpreter"]


def test_a_section_brings_the_container_and_looks_at_it_after_every_response():
    workspace = Workspace()
    with responses_api(response(function_call("ping")), response(message("Done."))) as api:
        deadline = Deadline.after(60)
        evaluate(api, workspace, deadline=deadline)

    assert isinstance(workspace, ContainerSource)
    assert workspace.heard == ["open 1", "used cntr_1", "open 1", "used cntr_1"]
    assert containers(api) == ["cntr_1", "cntr_1"]
    scope = workspace.scopes[0]
    assert scope.client.max_retries == 0
    assert (scope.deadline, type(scope.session)) == (deadline, Session)


def test_a_container_that_is_gone_is_replaced_and_scrubbed_from_the_history():
    workspace = Workspace()
    session = Session()
    prompt = Prompt(ns="n", key="k", sections=[workspace, TASK])
    first = response({"id": "rs_1", "type": "reasoning", "summary": []}, code_call("cntr_1"), function_call("ping"))
    with responses_api(first, EXPIRED, response(message("Done."))) as api:
        answer = api.adapter(hosted_tools=CODE).evaluate(prompt, session=session)

    assert answer.text == "Done."
    assert workspace.heard == ["open 1", "used cntr_1", "open 1", "expired cntr_1", "open 2", "used cntr_2"]
    assert containers(api) == ["cntr_1", "cntr_1", "cntr_2"]
    assert b"cntr_1" not in api.requests[-1].raw
    kinds = [item["type"] for item in api.bodies[-1]["input"]]
    assert kinds == ["message", "message", "function_call", "function_call_output"]
    assert [event.name for event in session[ToolInvoked].all()] == ["code_interpreter", "ping"]


def test_who_cannot_make_another_container_says_so():
    workspace = Workspace(most=1)
    with responses_api(EXPIRED) as api, pytest.raises(WinkError, match="no more containers"):
        evaluate(api, workspace)

    assert workspace.heard == ["open 1", "expired cntr_1"]


def test_containers_that_all_die_are_not_replaced_for_ever():
    workspace = Workspace()
    with (
        responses_api(*[EXPIRED] * 9) as api,
        pytest.raises(PromptEvaluationError, match="Container is expired") as caught,
    ):
        evaluate(api, workspace)

    assert caught.value.phase == "request"
    assert containers(api) == ["cntr_1", "cntr_2"]


def test_another_refusal_is_not_taken_for_expiry():
    workspace = Workspace()
    with responses_api(error(400, "Unknown parameter")) as api, pytest.raises(PromptEvaluationError):
        evaluate(api, workspace)

    assert workspace.heard == ["open 1"]


def test_only_sections_that_take_part_are_asked():
    disabled = Workspace(enabled=lambda: False)
    closed = Workspace("closed", summary="Files.", visibility=SectionVisibility.SUMMARY)
    with responses_api(response(message("Done."))) as api:
        evaluate(api, disabled, closed)

    assert disabled.heard == closed.heard == []
    assert containers(api) == [{"type": "auto", "memory_limit": "1g"}]


def test_a_section_that_is_opened_takes_part_from_then_on():
    closed = Workspace("closed", summary="Files.", visibility=SectionVisibility.SUMMARY)
    with responses_api(response(function_call("open_section", path="closed")), response(message("Done."))) as api:
        evaluate(api, closed)

    assert containers(api) == [{"type": "auto", "memory_limit": "1g"}, "cntr_1"]


def test_where_nothing_runs_in_a_container_nobody_is_asked():
    workspace = Workspace()
    with responses_api(response(message("Done."))) as api:
        evaluate(api, workspace, hosted=OpenAIHostedToolsConfig(web_search=True))

    assert workspace.heard == []


def test_a_shell_shares_the_container():
    hosted = OpenAIHostedToolsConfig(code_interpreter=True, others=(ShellConfig(AutoContainerConfig()),))
    with responses_api(response(message("Done."))) as api:
        evaluate(api, Workspace(), hosted=hosted)

    assert api.bodies[0]["tools"][1:] == [
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
    ]


@pytest.mark.parametrize(
    "sections, hosted, told",
    [
        ([Workspace("a"), Workspace("b")], CODE, "sections 'a' and 'b' both bring a container"),
        (
            [Workspace(), OpenAICodeInterpreterSection(default_params=CodeInterpreterConfig("cntr_9"))],
            None,
            "container is 'cntr_9', .*section 'workspace' brings one",
        ),
    ],
)
def test_two_containers_for_one_tool_are_refused(sections, hosted, told):
    with responses_api() as api, pytest.raises(NativeToolError, match=told):
        evaluate(api, *sections, hosted=hosted)

    assert api.requests == []


class Broken(Workspace):
    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        raise ProviderFault("the list of files did not come", status=500)


def test_trouble_after_the_answer_does_not_send_the_request_again():
    with responses_api(response(message("Done.")), response(message("Twice."))) as api:
        with pytest.raises(PromptEvaluationError, match="files of container cntr_1 were not listed: the list"):
            evaluate(api, Broken())
        assert len(api.bodies) == 1
