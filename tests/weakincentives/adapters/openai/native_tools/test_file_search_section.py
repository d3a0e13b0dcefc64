from __future__ import annotations

import pytest

from weakincentives.adapters.openai import FileSearchConfig, OpenAIFileSearchSection
from weakincentives.adapters.openai.native_tools import FileHit, FileSearchCall, FileSearchResult
from weakincentives.adapters.openai.native_tools.capability import ProviderRan, ResponseContext, ToolConfigError
from weakincentives.adapters.openai.native_tools.file_search_section import CAPABILITY
from weakincentives.errors import PromptEvaluationError, PromptValidationError
from weakincentives.prompt import MarkdownSection, NativeDeclaration, Prompt


def test_section_declares_file_search_without_text():
    task = MarkdownSection(title="Task", key="task", template="Find it.")
    rendered = Prompt(ns="n", key="k", sections=[OpenAIFileSearchSection(), task]).render()

    assert rendered.text == "## 1. Task (task)\n\nFind it."
    assert rendered.tools == ()
    assert rendered.native_tools == (
        NativeDeclaration(
            capability="file_search",
            name="file_search",
            provider="openai",
            config=FileSearchConfig(),
            origin="section 'openai_file_search'",
        ),
    )


def test_bound_params_are_the_config():
    params = FileSearchConfig(vector_store_ids=("vs_1",), max_results=3)
    prompt = Prompt(ns="n", key="k", sections=[OpenAIFileSearchSection()])

    assert prompt.bind(params).render().native_tools[0].config == params
    section = OpenAIFileSearchSection(default_params=params)
    assert section.native_tools()[0].config == params


@pytest.mark.parametrize("wrong", [0, 51, -1])
def test_max_results_out_of_range_is_refused(wrong: int):
    with pytest.raises(PromptValidationError, match="1 to 50") as caught:
        OpenAIFileSearchSection(default_params=FileSearchConfig(max_results=wrong))

    assert isinstance(caught.value, PromptEvaluationError)  # the same type as from the adapter
    assert caught.value.phase == "request"


def test_two_sections_collide_and_both_origins_are_named():
    other = OpenAIFileSearchSection().clone(key="second")
    with pytest.raises(PromptValidationError, match="section 'openai_file_search' and by section 'second'"):
        Prompt(ns="n", key="k", sections=[OpenAIFileSearchSection(), other])


def test_wire_field_names():
    config = FileSearchConfig(("vs_1", "vs_2"), 5, filters={"type": "eq", "key": "year", "value": 2026})

    assert CAPABILITY.declare(config) == {
        "type": "file_search",
        "vector_store_ids": ["vs_1", "vs_2"],
        "max_num_results": 5,
        "filters": {"type": "eq", "key": "year", "value": 2026},
    }
    assert CAPABILITY.declare(None) is None


@pytest.mark.parametrize("stores", ["vs_1", ("",), (7,)])
def test_invalid_vector_store_ids_are_refused(stores):
    with pytest.raises(ToolConfigError, match="vector_store_ids must be"):
        CAPABILITY.declare(FileSearchConfig(stores))


def read(**item) -> ProviderRan:
    reading = CAPABILITY.parse_call({"id": "fs_1", "type": "file_search_call", **item}, ResponseContext(), None)
    assert isinstance(reading, ProviderRan)
    return reading


def test_call_has_queries_and_hits():
    hit = {"file_id": "file-1", "filename": "tea.md", "score": 0.9, "text": "Tea.", "attributes": {"year": 2026}}
    ran = read(status="completed", queries=["tea"], results=[hit, {"filename": "b.md", "score": "?"}])

    assert ran.params == FileSearchCall(("tea",))
    assert ran.result.value == FileSearchResult(
        (FileHit("file-1", "tea.md", "Tea.", 0.9, {"year": 2026}), FileHit("", "b.md"))
    )
    assert ran.result.render() == "tea.md: Tea.\n\nb.md: "
    assert read(queries=None, results=None).result.render() == "(nothing found)"


def test_failure_has_error_code_and_no_value():
    ran = read(status="failed", queries=["tea"], error={"code": "vector_store_timeout", "message": "Too slow."})

    assert (ran.result.success, ran.result.value) == (False, None)
    assert ran.result.message == "file_search_call failed (vector_store_timeout): Too slow."
