"""Benchmark: compaction of a long history, and the next request with its item; real server, dummy model.

The model costs nearly no time and answers with eight words, which become the summary. So this measures what the server
does: reading and dividing the history, the request to the model, encryption; and afterwards decryption. A plain request
with the same history is the comparison: its difference to a compaction is the cost of the compaction itself.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from string import ascii_lowercase
from typing import Any, TypeAlias

import httpx2
from compared_servers import FIRST_WORD, Endpoint, compared_servers
from measurements import Measurement, Row, Suite

from antwort.api import items
from antwort.api.token_estimate import estimate_item

SIZES = (12_500, 25_000, 50_000, 100_000)
"""Tokens of the history, by the server's estimate."""
SMALLEST, LARGEST = SIZES[0], SIZES[-1]
ROUNDS = 9
MODEL = "quick"
MAX_GROWTH = 1.5
"""Target: time of the largest history ÷ time of the smallest, divided by the ratio of their sizes; 1 is linear."""
MAX_SIZE_ERROR = 0.05
VOCABULARY = 2_000
"""Different words of a history. The encrypted item is compressed, so repeated text would make it too short."""
TOOL = {
    "type": "function",
    "name": "read_file",
    "description": "Read lines of a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path", "line"],
        "additionalProperties": False,
    },
    "strict": True,
}
QUESTION = {"type": "message", "role": "user", "content": "What comes next?"}

Samples: TypeAlias = defaultdict[tuple[str, int], list[float]]
"""Samples by quantity and tokens of the history."""


def suite() -> Suite:
    """All measurements in one run; the sizes and the kinds of requests alternate."""
    samples: Samples = defaultdict(list)
    histories = {size: history_of(size) for size in SIZES}
    with compared_servers() as servers, servers.start_antwort() as endpoints, _client(endpoints["stateless"]) as client:
        for number in range(ROUNDS + 1):
            for size, history in histories.items():
                # the first round is the warm-up
                measure_round(samples if number else defaultdict(list), client, size, history)
    return Suite(rows(samples), [*NOTES, f"  {len(histories[LARGEST]):,} items in the history of {LARGEST:,} tokens"])


NOTES = [
    "Compaction: a dummy model that answers at once, and store: false. A real model takes seconds for the summary.",
    "  CPU is that of the server process. The plain request sends the same history to the same model.",
]


def history_of(tokens: int) -> list[dict[str, Any]]:
    """A history of a coding agent: user messages, calls with outputs, answers. The same in every run."""
    source = random.Random(tokens)  # noqa: S311 - no secrets
    vocabulary = ["".join(source.choices(ascii_lowercase, k=source.randint(2, 9))) for _ in range(VOCABULARY)]
    history: list[dict[str, Any]] = []
    total = 0
    while total < tokens:
        turn = _agent_turn(len(history), lambda count: " ".join(source.choices(vocabulary, k=count)))
        history += turn
        total += sum(estimate_item(items.read(item)) for item in turn)
    return history


def _agent_turn(start: int, words: Callable[[int], str]) -> list[dict[str, Any]]:
    """A question, two calls in parallel, their outputs, and the answer."""
    calls = [f"call_{start}_{number}" for number in range(2)]
    arguments = json.dumps({"path": f"src/{words(1)}/{words(1)}.py", "line": start})
    answer = [{"type": "output_text", "text": words(70), "annotations": []}]
    return [
        {"type": "message", "role": "user", "content": words(30)},
        *(
            {"type": "function_call", "call_id": call_id, "name": TOOL["name"], "arguments": arguments}
            for call_id in calls
        ),
        *(
            {
                "type": "function_call_output",
                "call_id": call_id,
                "output": "\n".join(f"{start + line}: {words(8)}" for line in range(16)),
            }
            for call_id in calls
        ),
        {"type": "message", "role": "assistant", "content": answer},
    ]


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Client:
    """Sends requests to the server, and measures their time and the CPU time of the server."""

    def __init__(self, endpoint: Endpoint, http: httpx2.Client) -> None:
        self._server = endpoint.server
        self._http = http

    def post(
        self, path: str, input_items: list[dict[str, Any]], **fields: object
    ) -> tuple[dict[str, Any], float, float]:
        """The response, its time and the CPU time, in seconds."""
        body = json.dumps({"model": MODEL, "input": input_items, "tools": [TOOL], **fields}).encode()
        cpu, start = self._server.cpu_seconds(), time.perf_counter()
        answer = self._http.post(path, content=body)
        seconds = time.perf_counter() - start
        answer.raise_for_status()
        return answer.json(), seconds, self._server.cpu_seconds() - cpu


@contextlib.contextmanager
def _client(endpoint: Endpoint) -> Iterator[_Client]:
    headers = {"authorization": f"Bearer {endpoint.key}", "content-type": "application/json"}
    url = f"http://127.0.0.1:{endpoint.server.port}/v1/"
    with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        yield _Client(endpoint, http)


def measure_round(samples: Samples, client: _Client, size: int, history: list[dict[str, Any]]) -> None:
    """One compaction, one request with its result, and one with the whole history; their results are checked."""
    compacted, *compaction = client.post("responses/compact", history)
    note = compacted["antwort:compaction"]
    if note["method"] != "summary" or abs(note["tokens_before"] / size - 1) > MAX_SIZE_ERROR:
        raise RuntimeError(f"unexpected compaction: {note}")
    window = compacted["output"]
    after, *continued = client.post("responses", [*window, QUESTION], store=False)
    whole, *plain = client.post("responses", [*history, QUESTION], store=False)
    for response in (after, whole):
        if FIRST_WORD not in json.dumps(response["output"]):
            raise RuntimeError(f"unexpected response: {response}")
    for name, (seconds, cpu) in (("compaction", compaction), ("continued", continued), ("plain", plain)):
        samples[name, size].append(seconds)
        samples[f"{name} cpu", size].append(cpu)
    samples["item", size].append(len(window[-1]["encrypted_content"]) / 1024**2)
    samples["window", size].append(len(json.dumps(window)) / 1024**2)


# ── table ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(samples: Samples) -> list[Row]:
    """The rows of the table."""

    def measured(name: str, size: int) -> Measurement:
        return Measurement.from_samples(samples[name, size])

    def size_of(name: str, size: int) -> Measurement:
        return Measurement.from_samples(samples[name, size], "MB")

    def growth(name: str) -> Measurement:
        return measured(name, LARGEST).divided_by(LARGEST // SMALLEST).ratio_to(measured(name, SMALLEST))

    times = f"time of {LARGEST:,} ÷ ({LARGEST // SMALLEST} · time of {SMALLEST:,})"
    return [
        *(
            row
            for size in SIZES
            for row in (
                Row(f"compaction of {size:,} tokens", measured("compaction", size)),
                Row("  CPU of the server", measured("compaction cpu", size)),
            )
        ),
        Row(f"compaction: {times}", growth("compaction"), target=MAX_GROWTH),
        Row("  the same, CPU of the server", growth("compaction cpu"), target=MAX_GROWTH),
        Row(f"plain request with {LARGEST:,} tokens", measured("plain", LARGEST)),
        Row("  CPU of the server", measured("plain cpu", LARGEST)),
        Row("compaction ÷ plain request", measured("compaction", LARGEST).ratio_to(measured("plain", LARGEST))),
        Row("  CPU of the server", measured("compaction cpu", LARGEST).ratio_to(measured("plain cpu", LARGEST))),
        Row(f"request after the compaction of {LARGEST:,} tokens", measured("continued", LARGEST)),
        Row("  CPU of the server", measured("continued cpu", LARGEST)),
        Row("request after ÷ plain request", measured("continued", LARGEST).ratio_to(measured("plain", LARGEST))),
        *(Row(f"encrypted item of {size:,} tokens", size_of("item", size)) for size in (SMALLEST, LARGEST)),
        Row(f"compacted window of {LARGEST:,} tokens, as JSON", size_of("window", LARGEST)),
    ]
