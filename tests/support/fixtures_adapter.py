"""Three stages on which the OpenAI adapter must play the same: our server, answers written by us, and OpenAI itself.

A scene is request for by its name. On the wire stage that is a file of answers; on our server the scripted model knows
the scene by a word in the prompt; OpenAI is request as everybody asks it.
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
from fixtures_server import serving

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig

VERDICT = '{"summary": "done", "score": 3}'
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
            "when": {"text": "patience"},
            "times": 1,
            "reply": [{"fault": {"code": "rate_limit_exceeded", "status": 429, "retry_after": 7, "retryable": True}}],
        },
        {"when": {"text": "patience"}, "reply": [{"text": "Here you are."}]},
        {"when": {"text": "slowly"}, "reply": [{"delay": 60}, {"text": "Too late."}]},
    ],
}

PLAYED = {
    "greet": [response(message("Hello."))],
    "several": [response(message(VERDICTS))],
    "patience": [
        error(429, "Slow down.", code="rate_limit_exceeded", retry_after="7"),
        response(message("Here you are.")),
    ],
    "no such model": [error(404, "The model 'nobody' does not exist.", code="model_not_found")],
}
"""Answers that have no file of their own."""


class Stage:
    """Where an adapter plays. `lacks` are scenes that cannot be had there, with the reason."""

    name: str
    lacks: Mapping[str, str]

    def adapter(self, scene: str, **options: Any) -> OpenAIAdapter:
        if scene in self.lacks:
            pytest.skip(f"on {self.name}: {self.lacks[scene]}")
        return self.make(scene, **options)

    def make(self, scene: str, **options: Any) -> OpenAIAdapter:
        raise NotImplementedError


class WireStage(Stage):
    """Answers from `tests/wire`."""

    name = "wire"
    lacks = MappingProxyType({"slowly": "a played answer takes no time"})

    def __init__(self, api: FakeResponsesApi) -> None:
        self.api = api

    def make(self, scene: str, **options: Any) -> OpenAIAdapter:
        answers = PLAYED.get(scene) or load(scene)
        self.api.responses = FakeResponsesApi.to_responses(answers)
        return self.api.adapter(**options)


NOT_YET = "our server does not run this tool yet"
HOSTED: tuple[str, ...] = (
    "file_search",
    "file_search_failure",
    "web_search",
    "web_search_failure",
    "shell_hosted",
    "shell_local",
    "apply_patch",
    "mcp",
)
ODD: tuple[str, ...] = ("two_messages", "unknown_items")


class AntwortStage(Stage):
    """Our server, a process of its own, with a scripted model."""

    name = "antwort"
    lacks = MappingProxyType({**dict.fromkeys(HOSTED, NOT_YET), **dict.fromkeys(ODD, "its model is only a script")})

    def __init__(self, url: str) -> None:
        self.url = url

    def make(self, scene: str, **options: Any) -> OpenAIAdapter:
        config = OpenAIClientConfig(base_url=f"{self.url}/v1", api_key="none", timeout=30)
        return OpenAIAdapter(**{"model": "scripted", "client_config": config, **options})


CANNOT_BE_MADE_TO = "it cannot be made to"


class OpenAIStage(Stage):
    """The real thing. `OPENAI_MODEL` says with which model."""

    name = "openai"
    lacks = dict.fromkeys(
        (
            "refusal",
            "content_filter",
            "patience",
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
        CANNOT_BE_MADE_TO,
    )

    def __init__(self, *, chosen: bool) -> None:
        self.chosen = chosen

    def make(self, scene: str, **options: Any) -> OpenAIAdapter:
        if not self.chosen:  # a key in the environment is no leave to spend money
            pytest.skip("asks OpenAI, which `make test-openai` does")
        if "OPENAI_API_KEY" not in os.environ:
            pytest.skip("OPENAI_API_KEY is not set")
        return OpenAIAdapter(**{"model": os.environ.get("OPENAI_MODEL", "gpt-5.1"), **options})


@contextmanager
def antwort_stage(place: Path) -> Iterator[AntwortStage]:
    """Our server for a while."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "scenes.yaml").write_text(json.dumps(SCRIPT), encoding="utf-8")
    models = {"scripted": {"kind": "scripted", "script": "scenes.yaml"}}
    with serving(place, {"models": models, "providers": {"code_interpreter": {"enabled": True}}}) as server:
        yield AntwortStage(server.url)
