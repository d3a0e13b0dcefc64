"""The hosted tool web_search, with the real server process, a fake search engine, a fake web site and the real SDK."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from fake_search_api import KEY
from fixtures_server import create_key, run_server
from fixtures_web_search import CITING, RESULTS, SEARCH, SOURCES, WebSearchEnv, script, web_search_server
from waiting import wait_until

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
TYPES = ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    with web_search_server(tmp_path_factory.mktemp("server") / "s") as running:
        yield running


@pytest.fixture
def client(env):
    with env.server.client() as sdk:
        yield sdk


def ask(client, text: str | list, tool: dict | None = None, **more):
    request = {"model": "scripted", "input": text, "tools": [SEARCH if tool is None else tool], "include": SOURCES}
    return client.responses.create(**{**request, **more})


def calls(response) -> list[dict]:
    """The calls on the wire."""
    return [item.to_dict() for item in response.output if item.type == "web_search_call"]


def citations(response) -> list[tuple[str, str]]:
    """The cited parts of the text, with their URLs."""
    part = response.output[-1].content[0]
    return [(part.text[one.start_index : one.end_index], one.url) for one in part.annotations]


def test_the_banner_names_the_engine(env):
    assert "web        searxng; pages are read in sandboxes" in env.server.banner
    assert "tools      code_interpreter, shell, web_search" in env.server.banner


@pytest.mark.parametrize("stream", [False, True])
def test_web_search_options_of_a_chat_completion(env, client, stream):
    place = {"type": "approximate", "approximate": {"country": "DE"}}
    options = {"search_context_size": "low", "user_location": place}
    messages = [{"role": "user", "content": "tea and cite"}]
    request = {"model": "scripted", "messages": messages, "web_search_options": options}
    if stream:
        with client.chat.completions.stream(**request) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**request).choices[0].message
    cited = [one if isinstance(one, dict) else one.to_dict() for one in message.annotations]
    spans = [(one["url_citation"]["start_index"], one["url_citation"]["end_index"]) for one in cited]

    assert {one["url_citation"]["url"] for one in cited} == {f"{env.site.url}/tea"}
    assert [message.content[start:end] for start, end in spans] == ["[1]", f"[Tea prices]({env.site.url}/tea)"]
    assert "antwort:items" not in (message.model_extra or {})


# ── searches, pages and citations ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", TYPES)
def test_a_search_runs_and_what_the_model_cites_is_annotated(env, client, kind):
    response = ask(client, "tea and cite", {"type": kind})
    tea = f"{env.site.url}/tea"
    (call,) = calls(response)

    assert (call["type"], call["status"], call["id"][:3]) == ("web_search_call", "completed", "ws_")
    urls = [tea, "https://tea.example/green", "https://www.tea.example/black"]
    sources = [{"type": "url", "url": url} for url in urls]
    assert call["action"] == {"type": "search", "query": "tea", "queries": ["tea"], "sources": sources}
    assert response.output_text == CITING.replace("SITE", env.site.url)
    assert citations(response) == [("[1]", tea), (f"[Tea prices]({tea})", tea)]
    assert {one.title for one in response.output[-1].content[0].annotations} == {"Tea prices"}
    assert response.tool_usage.to_dict()["web_search"] == {"num_requests": 1}
    assert response.tools[0].type == kind


def test_annotations_come_between_the_deltas_and_their_indexes_are_those_of_the_text_so_far(client):
    text, found = "", []
    with client.responses.create(model="scripted", input="tea and cite", tools=[SEARCH], stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.output_text.annotation.added":
                cited = event.annotation
                found.append((event.annotation_index, text[cited.start_index : cited.end_index], len(text)))

    assert [at for at, *_ in found] == [0, 1]
    assert found[0][1] == "[1]"
    assert found[1][1].startswith("[Tea prices](http")
    assert all(sent < len(text) for *_, sent in found)


def test_a_page_is_opened_and_searched(env, client):
    response = ask(client, "research", include=[*SOURCES, *RESULTS])
    tea = f"{env.site.url}/tea"
    searched, opened, found = calls(response)

    assert searched["action"]["queries"] == ["oolong", "sencha"]
    assert [one["index"] for one in searched["results"]] == [1, 2]
    assert opened["action"] == {"type": "open_page", "url": tea}
    assert "Grüße aus dem Kontor: 茶 und 🍵" in opened["results"][0]["text"]
    assert "not text" not in opened["results"][0]["text"]
    assert found["action"] == {"type": "find_in_page", "url": tea, "pattern": "sencha COSTS"}
    assert "1 place with 'sencha COSTS'" in response.output_text
    assert "Sencha costs 20 euros." in response.output_text
    assert [cited for cited, _ in citations(response)] == ["[1]", tea]
    assert response.tool_usage.web_search.num_requests == 2
    assert env.site.paths.count("/tea") == 1


def test_sources_and_results_are_returned_if_included(client):
    bare = ask(client, "search tea", include=[])
    (call,) = calls(bare)

    assert set(call) == {"id", "type", "status", "action"}
    assert set(call["action"]) == {"type", "query", "queries"}
    full = client.responses.retrieve(bare.id, include=[*SOURCES, *RESULTS])
    (call,) = calls(full)
    assert len(call["action"]["sources"]) == len(call["results"]) == 3
    assert set(call["results"][0]) == {"index", "title", "url", "text"}


def test_the_order_of_results_alternates_between_the_queries(env, client):
    response = ask(client, "research")
    (searched, *_) = calls(response)

    assert [one["url"] for one in searched["action"]["sources"]] == [f"{env.site.url}/tea", "https://tea.example/green"]
    assert sorted(env.api.queries[-2:]) == ["oolong", "sencha"]


# ── options of the declaration ───────────────────────────────────────────────────────────────────────────────────────


def test_allowed_domains_restrict_results_pages_and_redirects(env, client):
    tool = {**SEARCH, "filters": {"allowed_domains": ["tea.example"]}}
    response = ask(client, "search tea", tool)
    (call,) = calls(response)

    assert [one["url"] for one in call["action"]["sources"]] == [
        "https://tea.example/green",
        "https://www.tea.example/black",
    ]
    assert env.api.queries[-1] == "search tea site:tea.example"
    assert response.tools[0].to_dict()["filters"] == {"allowed_domains": ["tea.example"]}
    before = len(env.site.paths)
    opened = ask(client, f"open {env.site.url}/tea", tool)
    assert calls(opened)[0]["status"] == "failed"
    assert "only pages of these domains are allowed: tea.example" in opened.output_text
    assert len(env.site.paths) == before


@pytest.mark.parametrize(
    "options, param",
    [
        ({"filters": {"allowed_domains": ["tea.example", "https://x.example"]}}, "tools[0].filters.allowed_domains[1]"),
        ({"filters": {"allowed_domains": []}}, "tools[0].filters.allowed_domains"),
        ({"filters": {"allowed_domains": ["a.example"] * 101}}, "tools[0].filters.allowed_domains"),
        ({"filters": {"blocked": []}}, "tools[0].filters.blocked"),
        ({"search_context_size": "huge"}, "tools[0].search_context_size"),
        ({"user_location": {"country": "Germany"}}, "tools[0].user_location.country"),
        ({"user_location": {"type": "exact"}}, "tools[0].user_location.type"),
        ({"external_web_access": "no"}, "tools[0].external_web_access"),
        ({"nonsense": 1}, "tools[0].nonsense"),
        ({"type": "web_search_preview", "filters": {}}, "tools[0].filters"),
    ],
)
def test_invalid_options_are_refused_by_their_path(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "search tea", {**SEARCH, **options})

    assert caught.value.param == param


def test_the_context_size_limits_what_the_model_reads(client):
    low, high = (
        calls(ask(client, "research", {**SEARCH, "search_context_size": size}, include=RESULTS))
        for size in ("low", "high")
    )

    assert len(low[0]["results"]) <= 5
    assert len(high[1]["results"][0]["text"]) >= len(low[1]["results"][0]["text"])


def test_the_location_of_the_user_is_echoed(client):
    location = {"type": "approximate", "city": "Hamburg", "country": "DE", "region": None, "timezone": "Europe/Berlin"}
    response = ask(client, "search tea", {**SEARCH, "user_location": location})

    assert response.tools[0].to_dict()["user_location"] == location


@pytest.mark.parametrize(
    "options, echoed",
    [
        ({}, {}),
        ({"search_context_size": None, "user_location": None}, {}),
        ({"search_context_size": "low"}, {"search_context_size": "low"}),
        (
            {"user_location": {"country": "DE"}},
            {"user_location": {"type": "approximate", "city": None, "country": "DE", "region": None, "timezone": None}},
        ),
        ({"external_web_access": False}, {"external_web_access": False}),
        ({"filters": {}}, {"filters": {"allowed_domains": None}}),
    ],
)
@pytest.mark.parametrize("kind", TYPES)
def test_the_declaration_is_echoed_with_its_defaults(client, kind, options, echoed):
    is_preview = "preview" in kind
    if is_preview and {"filters", "external_web_access"} & set(options):
        with pytest.raises(openai.BadRequestError):
            ask(client, "no search", {"type": kind, **options})
        return
    response = ask(client, "no search", {"type": kind, **options})
    filters = {} if is_preview else {"filters": None}
    expected = {"type": kind, "search_context_size": "medium", "user_location": None, **filters, **echoed}

    assert response.tools[0].to_dict() == expected
    assert client.responses.retrieve(response.id).tools[0].to_dict() == expected


def test_without_external_access_only_what_was_retrieved_before_is_used(env, client):
    cached = {**SEARCH, "external_web_access": False}
    ask(client, f"open {env.site.url}/text")
    requests, paths = len(env.api.requests), len(env.site.paths)

    found = ask(client, "search plain", cached)
    assert [one["url"] for one in calls(found)[0]["action"]["sources"]] == [f"{env.site.url}/text"]
    assert found.tool_usage is None
    opened = ask(client, f"open {env.site.url}/text", cached)
    assert "Plain tea costs 2 €." in opened.output_text
    missing = ask(client, f"open {env.site.url}/untyped", cached)
    assert calls(missing)[0]["status"] == "failed"
    assert "was not retrieved earlier" in missing.output_text
    assert (len(env.api.requests), len(env.site.paths)) == (requests, paths)


def test_a_response_that_is_not_stored_leaves_nothing_in_the_cache(env, client):
    cached = {**SEARCH, "external_web_access": False}
    ask(client, f"open {env.site.url}/latin1", store=False)
    opened = ask(client, f"open {env.site.url}/latin1", cached)

    assert "was not retrieved earlier" in opened.output_text


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "word, message",
    [
        ("quota", "has reached its quota"),
        ("forbidden", "its operator must check the key"),
        ("teapot", "refused the search with status 418"),
        ("moved", "refused the search with status 302"),
    ],
)
def test_a_search_that_is_refused_is_a_failed_call(env, client, word, message):
    response = ask(client, f"search {word}")
    (call,) = calls(response)

    assert (call["status"], call["action"]) == (
        "failed",
        {"type": "search", "query": f"search {word}", "queries": [f"search {word}"]},
    )
    assert message in response.output_text
    assert response.status == "completed"


def test_outages_are_failed_calls_and_open_the_circuit_breaker(tmp_path):
    with web_search_server(tmp_path / "s", code_interpreter=False) as env, env.server.client() as client:
        failed = [ask(client, f"search {word}") for word in ("outage", "throttled", "garbage", "odd", "cut")]
        texts = [response.output_text for response in failed]
        before = len(env.api.requests)
        last = ask(client, "search tea")
        rejected = last.output_text

        for text, reason in zip(
            texts, ["status 503", "rate limit", "not valid", "not valid", "cannot be reached"], strict=True
        ):
            assert "The search failed. The search engine" in text
            assert reason in text
        assert "failed repeatedly" in rejected
        assert len(env.api.requests) == before
        assert [one.tool_usage.web_search.num_requests for one in failed] == [1] * 5
        assert last.to_dict().get("tool_usage", {}).get("web_search", {}).get("num_requests", 0) == 0
        assert env.server.banner.count("pages are not opened, because there is no sandbox") == 1
        assert KEY not in env.server.read_log()
        assert "a secret of the engine" not in str(texts) + env.server.read_log()


def test_an_answer_that_is_too_large_is_a_failed_call(client):
    assert "an answer that is too large" in ask(client, "search huge").output_text


def test_an_engine_that_does_not_answer_is_given_up(client):
    assert "did not answer within 3 s" in ask(client, "search silent").output_text


@pytest.mark.parametrize(
    "path, message",
    [
        ("/archive", "content type is application/zip"),
        ("/damaged-pdf", "its parser ended with 'error'"),
        ("/bomb", "exceeds"),
        ("/big", "exceeds"),
        ("/endless", "exceeds"),
        ("/headers", "is incomplete or not valid HTTP"),
        ("/cut", "is incomplete or not valid HTTP"),
        ("/cut-gzip", "the compressed body is incomplete"),
        ("/brotli", "the content encoding 'br' is not supported"),
        ("/nothing", "status 404"),
        ("/loop", "redirects more than 5 times"),
        ("/redirect?to=http://10.0.0.1:PORT/", "10.0.0.1 is not on the public internet"),
        ("/redirect?to=http://[::1]:PORT/", "::1 is not on the public internet"),
        ("/redirect?to=http://127.0.0.2:PORT/", "127.0.0.2 is not on the public internet"),
        ("/redirect?to=http://2130706433:PORT/", "unusual form"),
        ("/redirect?to=file:///etc/passwd", "must start with http"),
        ("/redirect?to=http://127.0.0.1:22/", "port 22 is not allowed"),
        ("/slow", "within 3 s"),
    ],
)
def test_a_page_that_cannot_be_opened_is_a_failed_call(env, client, path, message):
    url = f"{env.site.url}{path.replace('PORT', str(env.site.port))}"
    response = ask(client, f"open {url}")
    (call,) = calls(response)

    assert (call["status"], call["action"]) == ("failed", {"type": "open_page", "url": url})
    assert message in response.output_text


@pytest.mark.parametrize(
    "path, text", [("/latin1", "Käse kostet 3 £"), ("/meta-charset", "お茶は二百円です"), ("/untyped", "Untyped tea")]
)
def test_pages_are_read_in_their_charset(env, client, path, text):
    assert text in ask(client, f"open {env.site.url}{path}").output_text


def test_a_pdf_is_read(env, client):
    response = ask(client, f"open {env.site.url}/pdf", include=RESULTS)

    assert calls(response)[0]["results"][0]["title"] == "Price list"
    assert "Oolong costs 12 euros." in response.output_text


def test_by_default_loopback_is_refused(tmp_path):
    fetch = {"allow_networks": []}
    with web_search_server(tmp_path / "s", fetch=fetch) as env, env.server.client() as client:
        for url in (f"{env.site.url}/tea", f"http://localhost:{env.site.port}/tea"):
            assert "is not on the public internet" in ask(client, f"open {url}").output_text
        assert env.site.paths == []


def test_broken_arguments_are_a_failed_call(client):
    response = ask(client, "broken")
    (call,) = calls(response)

    assert (call["status"], call["action"]) == ("failed", {"type": "search", "query": "", "queries": []})
    assert "not valid JSON" in response.output_text


def test_what_a_page_says_is_no_citation_of_other_pages(env, client):
    response = ask(client, f"open {env.site.url}/injection")

    assert "https://never.example/" in response.output_text
    assert {url for _, url in citations(response)} == {f"{env.site.url}/injection"}


# ── tool_choice, limits, other tools ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("declared", TYPES)
@pytest.mark.parametrize("chosen", TYPES)
def test_every_version_of_the_tool_can_be_chosen_by_every_name(client, declared, chosen):
    response = ask(client, "search tea", {"type": declared}, tool_choice={"type": chosen})

    assert len(calls(response)) == 1
    choice = response.tool_choice  # a dictionary where the SDK does not know the type
    assert (choice["type"] if isinstance(choice, dict) else choice.type) == chosen


def test_tool_choice_none_and_allowed_tools(client):
    assert calls(ask(client, "search tea", tool_choice="none")) == []
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search_preview"}]}
    assert len(calls(ask(client, "search tea", tools=[SEARCH, ADD], tool_choice=choice))) == 1


def test_a_choice_without_the_tool_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="Tool choice 'web_search' not found"):
        ask(client, "search tea", tools=[ADD], tool_choice={"type": "web_search"})


def test_max_tool_calls_limits_the_searches(client):
    response = ask(client, "again and again", max_tool_calls=2)

    assert len(calls(response)) == 2
    assert response.tool_usage.web_search.num_requests == 2


def test_a_client_function_beside_a_search(client):
    response = ask(client, "both", tools=[SEARCH, ADD])

    assert [item.type for item in response.output] == ["web_search_call", "function_call"]


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_numbers_are_kept(env, response) -> None:
    """The model read the results of the history with their numbers, and its citations count."""
    assert "[1] Tea prices" in response.output_text
    assert "[2] Green tea" in response.output_text
    tea, green = f"{env.site.url}/tea", "https://tea.example/green"
    assert citations(response)[:2] == [("[1]", tea), ("[2]", green)]


def test_a_chained_response_knows_the_sources(env, client):
    first = ask(client, "search tea")

    check_numbers_are_kept(env, ask(client, "again", previous_response_id=first.id))


@pytest.mark.parametrize("include", [[], SOURCES, RESULTS, SOURCES + RESULTS])
def test_a_replayed_history_knows_the_sources(env, client, include):
    first = ask(client, "search tea", include=include)
    history = [{"role": "user", "content": "search tea"}, *(item.to_dict() for item in first.output)]

    check_numbers_are_kept(env, ask(client, [*history, {"role": "user", "content": "again"}]))


def test_the_history_of_another_server_is_accepted(client):
    item = {"type": "web_search_call", "id": "ws_other", "status": "completed"}
    action = {"type": "search", "query": "tea", "sources": [{"type": "url", "url": "https://far.example/"}]}
    given = [{"role": "user", "content": "x"}, {**item, "action": action}, {"role": "user", "content": "again"}]

    assert citations(ask(client, given)) == []


def test_a_background_response_searches_and_its_stream_can_be_resumed(env, client):
    response = ask(client, "tea and cite", background=True)
    done = wait_until(lambda: (now := client.responses.retrieve(response.id)).status == "completed" and now)

    assert citations(done)[0][0] == "[1]"
    assert done.tool_usage.web_search.num_requests == 1


def test_a_kill_during_a_call_repeats_no_search_and_no_fetch(env):
    """The calls of the reply that was cut are not run again, and those before it keep their sources."""
    searches = {query: env.api.queries.count(query) for query in ("tea", "oolong")}
    fetches = env.site.paths.count("/silent")
    with env.server.client() as client:
        begun = ask(client, "killed", background=True)
        wait_until(lambda: env.site.paths.count("/silent") > fetches)
    env.server.kill()
    env.server.start()
    with env.server.client() as client:
        done = wait_until(lambda: (now := client.responses.retrieve(begun.id)).status == "completed" and now)

    found, opened, _ = calls(done)
    assert (found["status"], opened["status"]) == ("completed", "failed")
    assert opened["action"] == {"type": "open_page", "url": f"{env.site.url}/silent"}
    assert citations(done)[0] == ("[1]", f"{env.site.url}/tea")
    assert done.tool_usage.web_search.num_requests in (1, 2)
    assert [env.api.queries.count(query) - before for query, before in searches.items()] in ([1, 0], [1, 1])
    assert env.site.paths.count("/silent") == fetches + 1


# ── tenants, and servers without an engine ───────────────────────────────────────────────────────────────────────────


def test_two_tenants_see_nothing_of_each_other(tmp_path):
    directory = tmp_path / "s"
    keys = [create_key(directory, name, "--tenant", name) for name in ("a", "b")]
    with web_search_server(directory, auth={"keys_file": "keys.json"}) as env:
        first, second = (env.server.client(key) for key in keys)
        with first, second:
            opened = ask(first, f"open {env.site.url}/tea")
            cached = {**SEARCH, "external_web_access": False}
            assert "oolong costs" in ask(first, f"open {env.site.url}/tea", cached).output_text
            assert "was not retrieved earlier" in ask(second, f"open {env.site.url}/tea", cached).output_text
            assert calls(ask(first, "search oolong", cached))[0]["action"]["sources"] != []
            assert calls(ask(second, "search oolong", cached))[0]["action"]["sources"] == []
            replayed = [opened.output[0].to_dict(), {"role": "user", "content": "again"}]
            assert (
                "oolong costs" in ask(first, replayed).output_text
                or "[1] Tea prices" in ask(first, replayed).output_text
            )
            assert "Tea prices" not in ask(second, replayed).output_text
            for _ in range(5):
                ask(second, "search outage")
            assert "failed repeatedly" in ask(second, "search tea").output_text
            assert calls(ask(first, "search tea"))[0]["status"] == "completed"
        caches = list((env.server.directory / ".antwort" / "web_search" / "cache").glob("*.db"))
        assert len(caches) == 2


def test_without_a_sandbox_the_model_gets_snippets_only(tmp_path):
    with web_search_server(tmp_path / "s", code_interpreter=False) as env, env.server.client() as client:
        response = ask(client, "search tea")
        assert "Oolong and sencha: what tea costs." in response.output_text
        assert "There is no tool 'open_page'" in ask(client, f"open {env.site.url}/tea").output_text


def test_without_an_engine_the_tool_is_off_and_the_banner_says_why(tmp_path):
    with run_server(tmp_path / "s") as server, server.client() as client:
        assert "web        off: no search engine is configured in providers.web_search.engine" in server.banner
        with pytest.raises(openai.BadRequestError, match="Tool type 'web_search' is not available on this server"):
            ask(client, "search tea")


def test_saved_pages_need_no_network(tmp_path):
    pages = tmp_path / "pages" / "tea.example"
    pages.mkdir(parents=True)
    (pages / "green.md").write_text("# Green tea\nSencha is a green tea.", encoding="utf-8")
    (pages / "black.html").write_text("<title>Black</title><p>Assam is a black tea.", encoding="utf-8")
    providers = {
        "web_search": {"engine": "local", "folder": str(tmp_path / "pages")},
        "code_interpreter": {"enabled": True},
    }
    with run_server(tmp_path / "s", {"providers": providers}, script=script("https://tea.example")) as server:
        assert "web        saved pages of a folder, without network" in server.banner
        with server.client() as client:
            found = ask(client, "search assam")
            assert [one["url"] for one in calls(found)[0]["action"]["sources"]] == ["https://tea.example/black.html"]
            assert "Sencha is a green tea." in ask(client, "open https://tea.example/green.md").output_text
            missing = ask(client, "open https://tea.example/other")
            assert "not among the saved pages" in missing.output_text
            (pages / "white.txt").write_text("White tea is mild.", encoding="utf-8")
            assert "White tea is mild." in ask(client, "search mild").output_text


def test_a_search_that_is_cancelled_ends(env, client):
    body = {"model": "scripted", "input": "search silent", "tools": [SEARCH], "background": True, "stream": True}
    with httpx2.Client(base_url=env.server.url, timeout=30, trust_env=False) as http:
        with http.stream("POST", "/v1/responses", json=body) as answer:
            events = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            path = f"/v1/responses/{next(events)['response']['id']}"
            next(event for event in events if event["type"] == "response.web_search_call.searching")
            assert http.post(f"{path}/cancel").json()["status"] == "cancelled"
        item = http.get(path).json()["output"][0]

    assert (item["status"], item["action"]["query"]) == ("incomplete", "search silent")


def test_all_searches_of_one_answer_run(env: WebSearchEnv, client):
    response = ask(client, "again and again")

    assert [call["action"]["query"] for call in calls(response)] == ["tea", "oolong", "sencha"]
    assert sorted(env.api.queries[-3:]) == ["oolong", "sencha", "tea"]
