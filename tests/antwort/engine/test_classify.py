from __future__ import annotations

import pytest
from fixtures_turn import EchoToolbox

from antwort.api.errors import ApiError
from antwort.api.tools import Chosen, CustomTool, FileSearchTool, FunctionTool, GrammarFormat, WebSearchTool
from antwort.engine.classify import Clients, Offer, Ours, classify
from antwort.engine.ports import FunctionSpec, Must

GRAMMAR = GrammarFormat("regex", "a+")
TOOLS = [FunctionTool("add"), CustomTool("shout", format=GRAMMAR), FileSearchTool(vector_store_ids=["vs_1"])]


def names(offer: Offer) -> list[str]:
    return [spec.name for spec in offer.specs]


def test_every_declared_tool_is_the_clients_or_ours():
    offer = classify(TOOLS, "auto", EchoToolbox())

    assert offer.whose == {"add": Clients(custom=False), "shout": Clients(custom=True), "file_search": Ours(2)}
    assert names(offer) == ["add", "shout", "file_search"]
    assert (offer.choice, offer.forbidden) == ("auto", frozenset())
    shout = offer.specs[1]
    assert (shout.free_text, shout.grammar) == (True, GRAMMAR)


def test_what_nobody_runs_is_refused_and_says_which():
    with pytest.raises(ApiError, match="'web_search' is not available") as caught:
        classify([*TOOLS, WebSearchTool()], "auto", EchoToolbox())
    assert caught.value.param == "tools[3].type"


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(ApiError, match="Two tools would be called 'file_search'") as caught:
        classify([FunctionTool("file_search"), TOOLS[2]], "auto", EchoToolbox())
    assert caught.value.param == "tools[1]"


def test_none_forbids_everything_and_hides_nothing():
    offer = classify(TOOLS, "none", EchoToolbox())

    assert names(offer) == ["add", "shout", "file_search"]
    assert offer.forbidden == {"add", "shout", "file_search"}


def test_allowed_tools_hide_and_forbid_the_others():
    choice = Chosen("allowed_tools", mode="required", tools=[Chosen("function", "add"), Chosen("file_search")])
    offer = classify(TOOLS, choice, EchoToolbox())

    assert names(offer) == ["add", "file_search"]
    assert (offer.choice, offer.forbidden) == ("required", {"shout"})
    assert offer.relaxed().forbidden == offer.without_ours().forbidden == {"shout"}


@pytest.mark.parametrize(
    "choice, demanded",
    [
        (Chosen("function", "add"), Must("add")),
        (Chosen("custom", "shout"), Must("shout")),
        (Chosen("file_search"), Must("file_search")),
        ("required", "required"),
    ],
)
def test_a_demand_names_the_function_and_is_made_once(choice, demanded):
    offer = classify(TOOLS, choice, EchoToolbox())

    assert offer.choice == demanded
    assert offer.relaxed().choice == "auto"
    assert offer.forbidden == frozenset()


def test_once_ours_are_spent_only_the_clients_are_offered():
    offer = classify(TOOLS, "auto", EchoToolbox())

    assert names(offer.without_ours()) == ["add", "shout"]
    assert classify(TOOLS[2:], "auto", EchoToolbox()).without_ours().choice == "none"


def test_ours_are_described_by_whoever_runs_them():
    class Described(EchoToolbox):
        def describe(self, spec: FunctionSpec) -> FunctionSpec:
            return FunctionSpec(spec.name, "Search in a.txt.", spec.parameters)

    offer = classify(TOOLS, "auto", EchoToolbox()).described({2: Described()})

    assert [spec.description for spec in offer.specs] == [None, None, "Search in a.txt."]
