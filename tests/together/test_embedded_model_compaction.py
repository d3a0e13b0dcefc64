"""Compaction with the embedded model: it writes the summaries, and answers from them."""

from __future__ import annotations

import pytest
from fixtures_server import run_server
from local_weights import find_local_weights

FACTS = {
    1: "The database of the project runs on host db-7 at port 6543.",
    4: "Our lead engineer is Marta Kowalski.",
    8: "The deadline is the 14th of March.",
}
TURNS = 17
THRESHOLD = 1600


def turn_text(turn: int) -> str:
    text = FACTS.get(turn, f"Status note {turn}: the nightly job number {turn} finished in {turn * 3 + 7} minutes.")
    return f"{text} Explain in eight sentences what this means for planning."


@pytest.mark.model
def test_facts_survive_compactions_by_the_embedded_model(tmp_path):
    model = {"kind": "embedded", "model": str(find_local_weights()), "context": 4096, "parallel": 1}
    with run_server(tmp_path, {"models": {"small": model}}) as server:
        client = server.client().with_options(timeout=600)
        previous, compactions, sizes = None, 0, []
        for turn in range(TURNS):
            counted = client.responses.input_tokens.count(
                model="small", input=turn_text(turn), previous_response_id=previous
            )
            response = client.responses.create(
                input=turn_text(turn),
                previous_response_id=previous,
                max_output_tokens=200,
                context_management=[{"type": "compaction", "compact_threshold": THRESHOLD}],
            )
            previous = response.id
            compactions += sum(item.type == "compaction" for item in response.output)
            sizes.append(counted.input_tokens)
        answers = {
            question: client.responses.create(
                input=question, previous_response_id=previous, max_output_tokens=60
            ).output_text
            for question in (
                "On which host and at which port does the database run?",
                "Who is the lead engineer?",
                "When is the deadline?",
            )
        }

    host, engineer, deadline = answers.values()
    assert compactions
    assert max(sizes) < THRESHOLD + 100, "the history is compacted before it grows further"
    assert "db-7" in host
    assert "6543" in host
    assert "Kowalski" in engineer
    assert "14" in deadline
