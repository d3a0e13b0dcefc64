from __future__ import annotations

from typing import Any

import pytest
from fixtures_turn import EchoTools, prepared

from antwort.api.errors import ApiError
from antwort.api.requests import ToolChoice
from antwort.api.tools import Chosen, CustomTool, FileSearchTool, FunctionTool, GrammarFormat, WebSearchTool
from antwort.engine.classify import ClientSide, Offer, ServerSide, check_tool_types, classify
from antwort.engine.ports import FunctionSpec, MustCall

GRAMMAR = GrammarFormat("regex", "a+")
TOOLS: list[Any] = [
    FunctionTool("add"),
    CustomTool("shout", format=GRAMMAR),
    FileSearchTool(vector_store_ids=["vs_1"]),
]


def names(offer: Offer) -> list[str]:
    return [spec.name for spec in offer.specs]


def offer_of(tools: list[Any], choice: ToolChoice = "auto") -> Offer:
    return classify(tools, choice, prepared(tools, EchoTools()))


def test_every_declared_tool_is_client_side_or_server_side():
    offer = offer_of(TOOLS)

    assert offer.owner == {
        "add": ClientSide(is_custom=False),
        "shout": ClientSide(is_custom=True),
        "file_search": ServerSide(2),
    }
    assert names(offer) == ["add", "shout", "file_search"]
    assert (offer.choice, offer.forbidden) == ("auto", frozenset())
    shout = offer.specs[1]
    assert (shout.free_text, shout.grammar) == (True, GRAMMAR)


def test_an_unsupported_tool_type_is_refused_by_name():
    check_tool_types(TOOLS, None, EchoTools())
    with pytest.raises(ApiError, match="'web_search' is not available on this server") as caught:
        check_tool_types([*TOOLS, WebSearchTool()], None, EchoTools())
    assert caught.value.param == "tools[3].type"


@pytest.mark.parametrize("kind", ["computer", "web_search_preview", "computer_use"])
def test_an_unsupported_tool_choice_is_refused_with_the_available_types(kind):
    available = "Available types: 'function', 'custom', 'file_search'"
    with pytest.raises(ApiError, match=f"'{kind}' is not available on this server. {available}") as caught:
        check_tool_types([], Chosen(kind), EchoTools())
    assert caught.value.param == "tool_choice.type"
    with pytest.raises(ApiError, match="'function', 'custom', 'file_search'"):
        check_tool_types([], Chosen("teleport"), EchoTools())
    check_tool_types(TOOLS, Chosen("allowed_tools", mode="auto", tools=[Chosen("file_search")]), EchoTools())


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(ApiError, match="Two tools would be called 'file_search'") as caught:
        offer_of([FunctionTool("file_search"), TOOLS[2]])
    assert caught.value.param == "tools[1]"


def test_choice_none_forbids_every_function_and_offers_all():
    offer = offer_of(TOOLS, "none")

    assert names(offer) == ["add", "shout", "file_search"]
    assert offer.forbidden == {"add", "shout", "file_search"}


def test_allowed_tools_forbid_the_others_and_do_not_offer_them():
    choice = Chosen("allowed_tools", mode="required", tools=[Chosen("function", "add"), Chosen("file_search")])
    offer = offer_of(TOOLS, choice)

    assert names(offer) == ["add", "file_search"]
    assert (offer.choice, offer.forbidden) == ("required", {"shout"})
    assert offer.with_auto_choice().forbidden == offer.client_only().forbidden == {"shout"}


@pytest.mark.parametrize(
    "choice, expected",
    [
        (Chosen("function", "add"), MustCall("add")),
        (Chosen("custom", "shout"), MustCall("shout")),
        (Chosen("file_search"), MustCall("file_search")),
        ("required", "required"),
    ],
)
def test_a_forced_choice_names_the_function_and_is_forced_once(choice, expected):
    offer = offer_of(TOOLS, choice)

    assert offer.choice == expected
    assert offer.with_auto_choice().choice == "auto"
    assert offer.forbidden == frozenset()


def test_client_only_drops_the_hosted_functions():
    assert names(offer_of(TOOLS).client_only()) == ["add", "shout"]
    assert offer_of(TOOLS[2:]).client_only().choice == "none"


def test_the_prepared_tool_gives_the_final_description():
    class Described(EchoTools):
        specs = (FunctionSpec("file_search", "Search in a.txt.", None),)

    offer = classify(TOOLS, "auto", prepared(TOOLS, Described()))

    assert [spec.description for spec in offer.specs] == [None, None, "Search in a.txt."]
