from __future__ import annotations

from typing import Any

import pytest
from fixtures_turn import EchoTools, prepared

from antwort.api.errors import ApiError
from antwort.api.requests import ToolChoice
from antwort.api.tools import (
    Chosen,
    CustomTool,
    DatedWebSearchPreviewTool,
    DatedWebSearchTool,
    FileSearchTool,
    FunctionTool,
    GrammarFormat,
    McpTool,
    NamespaceTool,
    ToolSearchTool,
    WebSearchPreviewTool,
    WebSearchTool,
    tool_type,
)
from antwort.engine.classify import ClientSide, Offer, ServerSide, check_choice, check_tool_types, classify
from antwort.engine.declared.tools import declare
from antwort.engine.ports import FunctionSpec, MustCall, ToolDefaults

GRAMMAR = GrammarFormat("regex", "a+")
TOOLS: list[Any] = [
    FunctionTool("add"),
    CustomTool("shout", format=GRAMMAR),
    FileSearchTool(vector_store_ids=["vs_1"]),
]
CRM = NamespaceTool("crm", "Customers.", [FunctionTool("get", description="Get one."), CustomTool("put")])
HR = NamespaceTool("hr", "", [FunctionTool("get")])


def names(offer: Offer) -> list[str]:
    return [spec.name for spec in offer.specs]


def offer_of(tools: list[Any], choice: ToolChoice = "auto") -> Offer:
    declared = declare(tools)
    check_choice(choice, declared, EchoTools())
    return classify(declared, choice, prepared(declared, EchoTools()))


def test_every_declared_tool_is_client_side_or_server_side():
    offer = offer_of(TOOLS)

    assert offer.owner == {
        "add": ClientSide(is_custom=False, name="add"),
        "shout": ClientSide(is_custom=True, name="shout"),
        "file_search": ServerSide(2),
    }
    assert names(offer) == ["add", "shout", "file_search"]
    assert (offer.choice, offer.forbidden) == ("auto", frozenset())
    shout = offer.specs[1]
    assert (shout.free_text, shout.grammar) == (True, GRAMMAR)


def test_an_unsupported_tool_type_is_refused_by_name():
    check_tool_types(declare(TOOLS), EchoTools())
    with pytest.raises(ApiError, match="'web_search' is not available on this server") as caught:
        check_tool_types(declare([*TOOLS, WebSearchTool()]), EchoTools())
    assert caught.value.param == "tools[3].type"


@pytest.mark.parametrize("kind", ["computer", "web_search_preview", "computer_use"])
def test_an_unsupported_tool_choice_is_refused_with_the_available_types(kind):
    available = "Available types: 'function', 'custom', 'namespace', 'tool_search', 'file_search'"
    with pytest.raises(ApiError, match=f"'{kind}' is not available on this server. {available}") as caught:
        check_choice(Chosen(kind), [], EchoTools())
    assert caught.value.param == "tool_choice.type"
    with pytest.raises(ApiError, match="'function', 'custom', 'namespace', 'tool_search', 'file_search'"):
        check_choice(Chosen("teleport"), [], EchoTools())
    check_choice(Chosen("allowed_tools", mode="auto", tools=[Chosen("file_search")]), declare(TOOLS), EchoTools())


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
    assert offer.demanded == ({expected.name} if isinstance(expected, MustCall) else {"add", "shout", "file_search"})
    assert offer.with_auto_choice().choice == "auto"
    assert offer.with_auto_choice().demanded == offer.client_only().demanded == frozenset()
    assert offer.forbidden == frozenset()


def test_every_function_of_a_demanded_hosted_tool_fulfils_the_demand():
    class Two(EchoTools):
        specs = (FunctionSpec("search", None, None), FunctionSpec("open_page", None, None))

    declared = declare(TOOLS)
    offer = classify(declared, Chosen("file_search"), prepared(declared, Two()))

    assert (offer.choice, offer.demanded) == (MustCall("search"), {"search", "open_page"})
    assert offer.demand == "'open_page' or 'search'"


def test_allowed_tools_demand_a_call_only_in_mode_required():
    allowed = [Chosen("function", "add"), Chosen("file_search")]
    modes = {mode: offer_of(TOOLS, Chosen("allowed_tools", mode=mode, tools=allowed)) for mode in ("auto", "required")}

    assert modes["required"].demanded == {"add", "file_search"}
    assert modes["auto"].demanded == offer_of(TOOLS, "none").demanded == frozenset()


def test_a_demand_names_a_few_functions_only():
    many = [FunctionTool(f"f{at}") for at in range(6)]

    assert offer_of(many[:2], "required").demand == "'f0' or 'f1'"
    assert offer_of(many, "required").demand == "one of its tools"


def test_client_only_drops_the_hosted_functions():
    assert names(offer_of(TOOLS).client_only()) == ["add", "shout"]
    assert offer_of(TOOLS[2:]).client_only().choice == "none"


def test_the_prepared_tool_gives_the_final_description():
    class Described(EchoTools):
        specs = (FunctionSpec("file_search", "Search in a.txt.", None),)

    offer = classify(declare(TOOLS), "auto", prepared(declare(TOOLS), Described()))

    assert [spec.description for spec in offer.specs] == [None, None, "Search in a.txt."]


# ── choices that no tool fulfils ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "tools, choice",
    [
        ([], "required"),
        ([FunctionTool("add")], Chosen("function", "sub")),
        ([FunctionTool("add")], Chosen("custom", "add")),
        ([], Chosen("allowed_tools", mode="auto", tools=[Chosen("file_search")])),
        ([], Chosen("allowed_tools", mode="required", tools=[])),
        ([CRM], Chosen("function", "crm__get")),
        ([CRM], Chosen("namespace", "other")),
    ],
)
def test_a_choice_of_a_tool_that_is_not_declared_is_refused(tools, choice):
    with pytest.raises(ApiError) as caught:
        check_choice(choice, declare(tools), EchoTools())
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


WEB_SEARCHES = [WebSearchTool(), DatedWebSearchTool(), WebSearchPreviewTool(), DatedWebSearchPreviewTool()]


@pytest.mark.parametrize("declared", WEB_SEARCHES, ids=tool_type)
@pytest.mark.parametrize("chosen", [tool_type(tool) for tool in WEB_SEARCHES])
def test_every_version_of_a_tool_is_chosen_by_every_version(declared, chosen):
    check_choice(Chosen(chosen), declare([declared]), EchoTools())


def test_a_version_that_is_declared_is_preferred_to_others():
    tools = declare([WebSearchTool(), WebSearchPreviewTool()])
    prepared = {0: PreparedSpecs("a"), 1: PreparedSpecs("b")}

    assert classify(tools, Chosen("web_search"), prepared).choice == MustCall("a")
    assert classify(tools, Chosen("web_search_preview"), prepared).choice == MustCall("b")


class PreparedSpecs(ToolDefaults):
    """A prepared tool with one function."""

    def __init__(self, name: str) -> None:
        self.specs = [FunctionSpec(name, None, None)]


def test_choices_of_declared_tools_are_accepted():
    check_choice(Chosen("web_search_preview"), declare([WebSearchTool()]), EchoTools())
    check_choice(Chosen("mcp", server_label="a"), declare([McpTool("a")]), EchoTools())
    check_choice(Chosen("tool_search"), declare([ToolSearchTool("client")]), EchoTools())


def test_a_choice_may_not_force_an_ignored_tool():
    tools, ignored = declare([FunctionTool("add")]), declare([WebSearchTool()])

    with pytest.raises(ApiError, match="'web_search' is not available on this server"):
        check_choice(Chosen("web_search"), tools, EchoTools(), ignored)
    with pytest.raises(ApiError, match="'required'"):
        check_choice(
            Chosen("allowed_tools", mode="required", tools=[Chosen("web_search")]), tools, EchoTools(), ignored
        )
    check_choice(Chosen("allowed_tools", mode="auto", tools=[Chosen("web_search")]), tools, EchoTools(), ignored)


# ── namespaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_functions_of_a_namespace_are_offered_by_one_name_and_the_first_describes_the_namespace():
    offer = offer_of([FunctionTool("get"), CRM])

    assert names(offer) == ["get", "crm__get", "crm__put"]
    assert offer.owner["crm__get"] == ClientSide(is_custom=False, name="get", namespace="crm")
    assert offer.owner["crm__put"] == ClientSide(is_custom=True, name="put", namespace="crm")
    assert [spec.description for spec in offer.specs] == [None, "[crm: Customers.]\n\nGet one.", None]
    assert offer.specs[2].free_text


@pytest.mark.parametrize(
    "tools, choice, offered, expected",
    [
        ([CRM], Chosen("function", "get"), ["crm__get", "crm__put"], MustCall("crm__get")),
        ([CRM], Chosen("custom", "put"), ["crm__get", "crm__put"], MustCall("crm__put")),
        ([CRM, FunctionTool("get")], Chosen("function", "get"), ["crm__get", "crm__put", "get"], MustCall("get")),
        ([CRM, HR], Chosen("function", "get"), ["crm__get", "hr__get"], "required"),
        ([CRM, HR], Chosen("namespace", "crm"), ["crm__get", "crm__put"], "required"),
        ([CRM, HR], Chosen("allowed_tools", mode="auto", tools=[Chosen("function", "get")]),
         ["crm__get", "hr__get"], "auto"),
        ([CRM, HR], Chosen("allowed_tools", mode="auto", tools=[Chosen("namespace", "hr")]), ["hr__get"], "auto"),
    ],
)  # fmt: skip
def test_a_choice_names_functions_of_namespaces_by_their_plain_names(tools, choice, offered, expected):
    offer = offer_of(tools, choice)

    assert (names(offer), offer.choice) == (offered, expected)


# ── tool search ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_search_of_the_client_is_a_function_and_one_of_the_server_is_none():
    search = ToolSearchTool("client", "Find tools.", {"type": "object"})
    offer = offer_of([search], Chosen("tool_search"))

    assert offer.specs == (FunctionSpec("tool_search", "Find tools.", {"type": "object"}),)
    assert offer.owner["tool_search"] == ClientSide(is_custom=False, name="tool_search", is_search=True)
    assert offer.choice == MustCall("tool_search")
    hosted = offer_of([ToolSearchTool(), FunctionTool("add")], Chosen("tool_search"))
    assert (names(hosted), hosted.choice) == (["add"], "required")


class _McpTools(ToolDefaults):
    """A prepared MCP server with two tools."""

    specs = tuple(FunctionSpec(f"crm__{name}", None, None, choice_name=name) for name in ("get", "put"))


def mcp_offer(choice: ToolChoice) -> Offer:
    declared = declare([McpTool("crm"), FunctionTool("add")])
    return classify(declared, choice, {0: _McpTools()})


ANY_OF_CRM = Chosen("mcp", server_label="crm")
PUT_OF_CRM = Chosen("mcp", server_label="crm", name="put")


@pytest.mark.parametrize(
    "choice, offered, expected, demanded",
    [
        (ANY_OF_CRM, ["crm__get", "crm__put"], "required", {"crm__get", "crm__put"}),
        (PUT_OF_CRM, ["crm__get", "crm__put", "add"], MustCall("crm__put"), {"crm__put"}),
        (Chosen("allowed_tools", mode="auto", tools=[PUT_OF_CRM]), ["crm__put"], "auto", set()),
        (
            Chosen("allowed_tools", mode="required", tools=[PUT_OF_CRM, Chosen("function", name="add")]),
            ["crm__put", "add"],
            "required",
            {"crm__put", "add"},
        ),
        (
            Chosen("allowed_tools", mode="auto", tools=[PUT_OF_CRM, ANY_OF_CRM]),
            ["crm__get", "crm__put"],
            "auto",
            set(),
        ),
    ],
)
def test_a_choice_names_an_mcp_server_or_one_of_its_tools(choice, offered, expected, demanded):
    offer = mcp_offer(choice)

    assert (names(offer), offer.choice, offer.demanded) == (offered, expected, demanded)
    assert offer.forbidden == {"crm__get", "crm__put", "add"} - set(offered)


def test_a_choice_of_a_tool_that_the_mcp_server_does_not_have_is_refused():
    with pytest.raises(ApiError, match="Tool choice 'drop' not found in the tools of the MCP server"):
        mcp_offer(Chosen("mcp", server_label="crm", name="drop"))
