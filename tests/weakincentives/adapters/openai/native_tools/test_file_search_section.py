from __future__ import annotations

import pytest

from weakincentives.adapters.openai import FileSearchConfig, OpenAIFileSearchSection
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import MarkdownSection, NativeDeclaration, Prompt


def test_it_declares_file_search_and_leaves_no_trace_in_the_text():
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


def test_bound_params_are_the_configuration():
    params = FileSearchConfig(vector_store_ids=("vs_1",), max_results=3)
    prompt = Prompt(ns="n", key="k", sections=[OpenAIFileSearchSection()])

    assert prompt.bind(params).render().native_tools[0].config == params
    section = OpenAIFileSearchSection(default_params=params)
    assert section.native_tools()[0].config == params


@pytest.mark.parametrize("wrong", [0, 51, -1])
def test_a_number_of_results_that_the_provider_refuses_is_refused_here(wrong: int):
    with pytest.raises(PromptValidationError, match="1 to 50"):
        OpenAIFileSearchSection(default_params=FileSearchConfig(max_results=wrong))


def test_two_of_them_collide_with_both_origins_named():
    other = OpenAIFileSearchSection().clone(key="second")
    with pytest.raises(PromptValidationError, match="section 'openai_file_search' and by section 'second'"):
        Prompt(ns="n", key="k", sections=[OpenAIFileSearchSection(), other])
