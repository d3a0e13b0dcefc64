"""Backends for the OpenAI adapter: antwort with a scripted model, a fake server with prepared responses, and OpenAI.

A scenario is selected by name. For the fake server it is a file of responses; for antwort the scripted model recognises
it by a word in the prompt; OpenAI gets the prompt alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fake_responses_api import FakeResponsesApi, error, load, message, response
from fixtures_web_search import call as web
from fixtures_web_search import search, web_search_server

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig

VERDICT = '{"summary": "done", "score": 3}'
PRICES = '{"summary": "as <<find /http:\\S+tea\\b/>> says", "score": 3}'
VERDICTS = '{"items": [{"summary": "one", "score": 1}, {"summary": "two", "score": 2}]}'


def look_up(topic: str) -> dict[str, Any]:
    return {"call": {"name": "look_up", "arguments": {"topic": topic}}}


def python(code: str) -> dict[str, Any]:
    return {"call": {"name": "code_interpreter", "arguments": {"code": code}}}


SCRIPT = {
    "fragment": 7,
    "answers": [
        {"when": {"text": "python tool", "turn": 1}, "reply": [{"reasoning": "Easy."}, python("print(6 * 7)")]},
        {"when": {"text": "python tool", "turn": 2}, "reply": [look_up("42")]},
        {
            "when": {"text": "python tool", "turn": 3},
            "reply": [python("open('/mnt/data/answer.txt', 'w').write('42')")],
        },
        {"when": {"text": "python tool", "turn": 4}, "reply": [{"text": '{"summary": "see answer.txt", "score": 3}'}]},
        {"when": {"text": "by zero", "turn": 1}, "reply": [python("1 / 0")]},
        {"when": {"text": "by zero", "turn": 2}, "reply": [{"text": VERDICT}]},
        {"when": {"text": "price of tea", "turn": 1}, "reply": [search("tea prices", "price of tea")]},
        {"when": {"text": "price of tea", "turn": 2}, "reply": [web("open_page", url="[1]")]},
        {"when": {"text": "price of tea", "turn": 3}, "reply": [web("find_in_page", url="[1]", pattern="oolong")]},
        {"when": {"text": "price of tea", "turn": 4}, "reply": [{"text": PRICES}]},
        {"when": {"text": "search the web", "turn": 1}, "reply": [search("forbidden")]},
        {"when": {"text": "search the web", "turn": 2}, "reply": [{"text": VERDICT}]},
        {
            "when": {"text": "Run `ls` and `cat missing`", "turn": 1},
            "reply": [web("shell", commands=["touch a.txt; ls", "cat missing"])],
        },
        {"when": {"text": "Run `ls` and `cat missing`", "output": "(exit code 1)"}, "reply": [{"text": VERDICT}]},
        {
            "when": {"text": "Run in the shell, in one call", "turn": 1},
            "reply": [web("shell", commands=["cat notes.txt", "echo more >> notes.txt; exit 3"])],
        },
        {"when": {"text": "Run in the shell, in one call", "output": "(exit code 3)"}, "reply": [{"text": VERDICT}]},
        {
            "when": {"text": "With apply_patch", "turn": 1},
            "reply": [
                web(
                    "apply_patch",
                    type="update_file",
                    path="src/app.py",
                    diff='@@ def main():\n-    print("old")\n+    print("new")\n',
                ),
                web("apply_patch", type="create_file", path="docs/new.md", diff="+# New\n+\n+Words.\n"),
                web("apply_patch", type="delete_file", path="old.txt"),
            ],
        },
        {"when": {"text": "With apply_patch", "output": "Deleted old.txt"}, "reply": [{"text": VERDICT}]},
        {"when": {"text": "greet"}, "reply": [{"text": "Hello."}]},
        {
            "when": {"text": "look up", "turn": 1, "tool": "look_up"},
            "reply": [{"reasoning": "Two things to look up."}, look_up("tea"), look_up("coffee")],
        },
        {"when": {"text": "look up", "turn": 2}, "reply": [{"reasoning": "Enough."}, {"text": VERDICT}]},
        {"when": {"text": "several"}, "reply": [{"text": VERDICTS}]},
        {"when": {"text": "refuse"}, "reply": [{"refusal": "I will not judge tea."}]},
        {"when": {"text": "essay"}, "reply": [{"text": "Tea is"}], "finish": "length"},
        {"when": {"text": "forbidden"}, "reply": [{"text": "The tea"}], "finish": "content_filter"},
        {
            "when": {"text": "retry"},
            "times": 1,
            "reply": [{"fault": {"code": "rate_limit_exceeded", "status": 429, "retry_after": 7, "retryable": True}}],
        },
        {"when": {"text": "retry"}, "reply": [{"text": "Here you are."}]},
        {"when": {"text": "slowly"}, "reply": [{"delay": 60}, {"text": "Too late."}]},
    ],
}

PREPARED_RESPONSES = {
    "greet": [response(message("Hello."))],
    "several": [response(message(VERDICTS))],
    "retry": [
        error(429, "Slow down.", code="rate_limit_exceeded", retry_after="7"),
        response(message("Here you are.")),
    ],
    "no such model": [error(404, "The model 'no-such-model' does not exist.", code="model_not_found")],
}
"""Responses without a file in `tests/wire`."""


class Backend:
    """A server for an adapter. `unsupported` are scenarios that it cannot produce, with the reason."""

    name: str
    unsupported: Mapping[str, str]

    def adapter(self, scenario: str, **options: Any) -> OpenAIAdapter:
        if scenario in self.unsupported:
            pytest.skip(f"on {self.name}: {self.unsupported[scenario]}")
        return self.make(scenario, **options)

    def make(self, scenario: str, **options: Any) -> OpenAIAdapter:
        raise NotImplementedError


class RecordedBackend(Backend):
    """A fake server with the responses in `tests/wire`."""

    name = "wire"
    unsupported = MappingProxyType({"slowly": "a prepared response takes no time"})

    def __init__(self, api: FakeResponsesApi) -> None:
        self.api = api

    def make(self, scenario: str, **options: Any) -> OpenAIAdapter:
        answers = PREPARED_RESPONSES.get(scenario) or load(scenario)
        self.api.responses = FakeResponsesApi.to_responses(answers)
        return self.api.adapter(**options)


NOT_SUPPORTED = "antwort does not run this tool yet"
UNSUPPORTED_TOOLS: tuple[str, ...] = (
    "file_search",
    "file_search_failure",
    "mcp",
)
UNUSUAL_OUTPUT: tuple[str, ...] = ("two_messages", "unknown_items")


class AntwortBackend(Backend):
    """An antwort process with a scripted model."""

    name = "antwort"
    unsupported = MappingProxyType(
        {
            **dict.fromkeys(UNSUPPORTED_TOOLS, NOT_SUPPORTED),
            **dict.fromkeys(UNUSUAL_OUTPUT, "its scripted model does not produce it"),
        }
    )

    def __init__(self, url: str) -> None:
        self.url = url

    def make(self, scenario: str, **options: Any) -> OpenAIAdapter:
        config = OpenAIClientConfig(base_url=f"{self.url}/v1", api_key="none", timeout=30)
        return OpenAIAdapter(**{"model": "scripted", "client_config": config, **options})


NOT_REPRODUCIBLE = "it cannot be produced on demand"


class OpenAIBackend(Backend):
    """OpenAI. `OPENAI_MODEL` selects the model."""

    name = "openai"
    unsupported = dict.fromkeys(
        (
            "refusal",
            "content_filter",
            "retry",
            "slowly",
            "code_interpreter_failures",
            "file_search",
            "file_search_failure",
            "web_search_failure",
            "mcp",
            "two_messages",
            "unknown_items",
            "refused tool",
        ),
        NOT_REPRODUCIBLE,
    )

    def __init__(self, *, is_selected: bool) -> None:
        self.is_selected = is_selected

    def make(self, scenario: str, **options: Any) -> OpenAIAdapter:
        if not self.is_selected:  # a key in the environment is not the permission to spend money
            pytest.skip("sends requests to OpenAI: run `make test-openai`")
        if "OPENAI_API_KEY" not in os.environ:
            pytest.skip("OPENAI_API_KEY is not set")
        return OpenAIAdapter(**{"model": os.environ.get("OPENAI_MODEL", "gpt-5.1"), **options})


@contextmanager
def antwort_backend(directory: Path) -> Iterator[AntwortBackend]:
    """Run antwort."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scenarios.yaml").write_text(json.dumps(SCRIPT), encoding="utf-8")
    models = {"scripted": {"kind": "scripted", "script": "scenarios.yaml"}, "default_for_unknown": False}
    with web_search_server(directory, models=models) as env:
        yield AntwortBackend(env.server.url)
