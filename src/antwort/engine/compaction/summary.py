"""Summary of a compacted history: the request to the model, the check of its reply, and the extract. Pure.

The extract replaces a summary that the model did not write, or that cannot be used. It is made from the history by
rules, so it needs no model: the newest texts, calls and results, each cut to a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from antwort.api import items
from antwort.api.items import GivenMessage, GivenReasoning, Item
from antwort.api.requests import TextFormat
from antwort.api.token_estimate import estimate_text
from antwort.engine.compaction.inline_data import without_attachments
from antwort.engine.compaction.retention import Retained, cut, has_role, is_instruction, is_summary, without_open_calls
from antwort.engine.ports import ModelRequest, SamplingOptions
from antwort.engine.truncate import truncate_tokens

HEADER: Final = (
    "Summary of the conversation so far. It replaces the earlier messages and tool calls, which are not shown any more."
)
_PROMPT: Final = """\
Summarize the conversation above in notes. It will be deleted, and the notes replace it: you must be able to continue \
the work from these notes alone.
Begin with the task of the user, and every constraint. Then list, one per line, every fact that was stated or found: \
names, numbers, dates, paths, hosts, identifiers, results, the state of files and containers, decisions with their \
reasons. Copy them exactly, also those of an earlier summary. End with what is unfinished and the next step.
Do not answer the user, do not call a tool, and do not mention this request. At most {words} words."""
_WORDS_PER_TOKEN = 0.6
_MAX_TOKENS_FACTOR = 2
"""A summary may be so much longer than its budget; a longer one is not used."""
_REASONING_TOKENS = 2_048
_MAX_LINE_TOKENS = 75
_MAX_CARRIED_SHARE = 0.75


def summary_request(
    base: ModelRequest, retained: Retained, budget: int, *, model: str, is_other_model: bool = False
) -> ModelRequest:
    """The request for a summary: the history, then the task. Calls that wait for an output are left out.

    Instructions and tools are those of the conversation, so that a backend with a prefix cache reads little again.
    Another model than that of the conversation gets texts in place of images and files, and no reasoning: they were
    prepared for the model of the conversation, and it may refuse them.
    """
    prompt = _PROMPT.format(words=max(40, int(budget * _WORDS_PER_TOKEN)))
    if retained.open_calls:
        prompt += "\n\nThese calls have no result yet:\n" + "\n".join(
            _one_line(_call_line(call)) for call in retained.open_calls
        )
    reasons = _asks_for_reasoning(base) or any(isinstance(item.known, GivenReasoning) for item in base.items)
    history = without_open_calls(_for_other_model(base.items) if is_other_model else base.items)
    return msgspec.structs.replace(
        base,
        model=model,
        items=[*history, items.read({"type": "message", "role": "user", "content": prompt})],
        choice="none",
        format=TextFormat(),
        max_output_tokens=budget * _MAX_TOKENS_FACTOR + (_REASONING_TOKENS if reasons else 0),
        top_logprobs=None,
        sampling=SamplingOptions(),
        verbosity=None,
    )


def _asks_for_reasoning(request: ModelRequest) -> bool:
    return request.reasoning is not None and request.reasoning.effort not in {None, "none"}


def _for_other_model(history: Sequence[Item]) -> list[Item]:
    replaced = (without_attachments(item) for item in history if not isinstance(item.known, GivenReasoning))
    return [item for item in replaced if item is not None]


def shorter_request(request: ModelRequest) -> ModelRequest:
    """The same request with long outputs cut and the older half of the history left out, for a small window.

    Instructions, earlier summaries and the last message of the user stay.
    """
    *history, prompt = request.items
    half = len(history) // 2
    last = max((index for index, item in enumerate(history) if has_role(item, "user")), default=half)
    kept = [
        cut(item, _MAX_LINE_TOKENS)
        for index, item in enumerate(history)
        if index >= half or index == last or is_summary(item) or is_instruction(item)
    ]
    return msgspec.structs.replace(request, items=[*without_open_calls(kept), prompt])


def problem_of(text: str, *, is_refusal: bool, is_cut: bool, budget: int) -> str | None:
    """Why the reply of a model cannot be used as a summary; None if it can."""
    if is_refusal:
        return "The model refused to write a summary."
    if not text.strip():
        return "The model wrote an empty summary."
    if is_cut or estimate_text(text) > budget * _MAX_TOKENS_FACTOR:
        return "The model wrote a summary that is too long."
    return None


def summary_item(compaction_id: str, text: str, identifiers: Sequence[str]) -> Item:
    """The message with the summary that a model reads in the compacted window."""
    parts = [HEADER, text.strip()]
    if identifiers:
        parts.append("Identifiers of containers and files:\n" + "\n".join(identifiers))
    content = [{"type": "input_text", "text": "\n\n".join(parts)}]
    return items.read({"type": "message", "id": compaction_id, "role": "user", "content": content})


def extract(history: Sequence[Item], budget: int) -> str:
    """A deterministic summary within the budget: earlier summaries, then the newest items, each as one line."""
    carried = "\n".join(_summary_text(item) for item in history if is_summary(item))
    carried = truncate_tokens(carried, int(budget * _MAX_CARRIED_SHARE))
    left = budget - estimate_text(carried)
    line_tokens = min(_MAX_LINE_TOKENS, budget // 4)
    lines: list[str] = []
    for item in reversed(history):
        line = _one_line(_line(without_attachments(item)), line_tokens)
        cost = estimate_text(line) + 1
        if cost > left:
            break
        if line:
            lines.append(line)
            left -= cost
    return "\n".join(filter(None, (carried, *reversed(lines))))


def _summary_text(item: Item) -> str:
    text = _message_text(item.known) if isinstance(item.known, GivenMessage) else ""
    return text.removeprefix(HEADER).partition("\n\nIdentifiers of containers and files:")[0].strip()


def _line(item: Item | None) -> str:
    """The line for an item: its speaker or tool, and its text."""
    if item is None or is_summary(item) or isinstance(item.known, GivenReasoning):
        return ""
    if isinstance(item.known, GivenMessage):
        return f"{item.known.role}: {_message_text(item.known)}"
    if item.type.endswith("_call"):
        return _call_line(item)
    output = item.raw.get("output")
    return f"result: {output}" if output is not None else ""


def _call_line(item: Item) -> str:
    raw = item.raw
    name = raw.get("name") or item.type.removesuffix("_call")
    values = (
        raw.get(key) for key in ("arguments", "input", "code", "action", "actions", "operation", "queries", "outputs")
    )
    return f"called {name}: " + " ".join(str(value) for value in values if value)


def _message_text(message: GivenMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return " ".join(
        str(getattr(part, "text", None) or getattr(part, "refusal", None) or "") for part in message.content
    )


def _one_line(text: str, tokens: int = _MAX_LINE_TOKENS) -> str:
    return " ".join(truncate_tokens(text, tokens).split())
