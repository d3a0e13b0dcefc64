from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import pytest
from fixtures_compaction import PIXEL, function_call, function_output, histories, message, raws, reasoning, unpaired
from fixtures_sealing import tenant_sealer
from fixtures_turn import TurnRunner, check_grammar, run_now
from hypothesis import given
from hypothesis import strategies as st

from antwort.api import items
from antwort.api.items import Item
from antwort.api.responses import Usage
from antwort.api.token_estimate import estimate_item, estimate_text
from antwort.engine.commands import Ask
from antwort.engine.compaction.compactor import Compacted, Compactor, SummaryReply
from antwort.engine.compaction.opening import is_request_message, message_digest, open_history
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.compaction.retention import Budgets, has_role, is_instruction, is_summary
from antwort.engine.ports import (
    ChosenModel,
    Finished,
    FunctionSpec,
    ModelFault,
    ModelRequest,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import parse_script

BUDGETS = Budgets(summary=125, users=250, calls=125)
MODEL = ChosenModel("m", Scripted(parse_script("answers: []")), "m")
SEALER = tenant_sealer()
TOO_LONG = ModelFault("It is too long.", code="context_length_exceeded", status=400)


def compactor(**fields: Any) -> Compactor:
    return Compactor(SEALER, "writer", BUDGETS, **fields)


def compact(
    used: Compactor, history: Sequence[Item], *replies: Sequence[Piece | Exception]
) -> tuple[Compacted, list[ModelRequest]]:
    """Compact with these replies to the requests for a summary; the result and the requests."""
    asked: list[ModelRequest] = []
    left = list(replies)

    def ask(request: ModelRequest, reply: SummaryReply) -> Generator[Any, Any, None]:
        asked.append(request)
        yield from ()
        for piece in left.pop(0):
            if isinstance(piece, Exception):
                raise piece
            reply.add(piece)

    base = ModelRequest(model="m", items=[*history], instructions="Be exact.")
    steps = used.compact("cmp_1", history, base, ask)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    return stop.value.value, asked


def long_history() -> list[Item]:
    turns = [
        item
        for number in range(20)
        for item in (
            message(f"question {number} " + "why " * 40),
            function_call(f"call_{number}"),
            function_output(f"call_{number}", f"result {number} " + "so " * 40),
            message(f"answer {number}", "assistant"),
        )
    ]
    return [message("Rules.", "developer"), *turns]


def test_a_summary_of_the_model_is_in_the_window_and_the_note_says_so():
    history = long_history()
    usage = Usage(input_tokens=900, output_tokens=5, total_tokens=905)
    done, [request] = compact(compactor(), history, [TextPiece("Fact: "), TextPiece("blue"), Finished("stop", usage)])

    assert (done.note.method, done.note.reason) == ("summary", None)
    assert done.note.tokens_before == sum(map(estimate_item, history))
    assert done.note.tokens_after == sum(map(estimate_item, done.window))
    assert done.note.tokens_after * 3 < done.note.tokens_before
    assert done.usage == usage
    assert request.model == "writer"
    [summary] = [item for item in done.window if is_summary(item)]
    assert "Fact: blue" in summary.raw["content"][0]["text"]
    assert summary.id == "cmp_1"
    assert done.window[0].raw == history[0].raw
    assert done.user_messages == [item for item in done.window if has_role(item, "user")]
    assert unpaired(done.window) == []


@pytest.mark.parametrize(
    "reply, reason",
    [
        ([Finished()], "The model wrote an empty summary."),
        ([TextPiece(" \n"), Finished()], "The model wrote an empty summary."),
        ([ReasoningPiece("Let me think."), Finished()], "The model wrote an empty summary."),
        ([RefusalPiece("I will not."), Finished()], "The model refused to write a summary."),
        ([TextPiece("half"), Finished("content_filter")], "The model refused to write a summary."),
        ([TextPiece("half"), Finished("length")], "The model wrote a summary that is too long."),
        ([TextPiece("word " * 400), Finished()], "The model wrote a summary that is too long."),
        ([TextPiece("x" * 2001)], "The model wrote a summary that is too long."),
        ([TextPiece("half"), ModelFault("It broke.")], "The model failed to write a summary: It broke."),
    ],
)
def test_an_unusable_summary_is_replaced_by_an_extract(reply, reason):
    done, asked = compact(compactor(), long_history(), reply)

    assert (done.note.method, done.note.reason) == ("extract", reason)
    assert len(asked) == 1
    [summary] = [item for item in done.window if is_summary(item)]
    assert "answer 19" in summary.raw["content"][0]["text"]
    assert unpaired(done.window) == []


def test_reading_stops_at_a_reply_that_is_much_too_long():
    reply = SummaryReply(10)
    reply.add(TextPiece("x" * 160))
    assert not reply.is_too_long
    reply.add(TextPiece("x"))
    assert reply.is_too_long


@pytest.mark.parametrize(
    "reply, written",
    [
        ([TextPiece("x" * 2001)], 501),
        ([ReasoningPiece("y" * 400), TextPiece("x" * 2001)], 601),
        ([TextPiece("half"), ModelFault("It broke.")], 1),
    ],
)
def test_the_usage_of_a_reply_that_is_not_read_to_its_end_is_estimated(reply, written):
    history = long_history()
    done, [request] = compact(compactor(), history, reply)

    given_tokens = sum(map(estimate_item, request.items)) + estimate_text("Be exact.")
    assert done.usage == Usage(input_tokens=given_tokens, output_tokens=written, total_tokens=given_tokens + written)


def test_a_model_that_fails_before_any_reply_has_no_usage():
    done, _ = compact(compactor(), long_history(), [ModelFault("It broke.")])

    assert done.usage == Usage()


def test_tools_count_in_the_estimated_usage():
    request = ModelRequest(model="m", items=[message("a")])
    reply = SummaryReply(10)
    reply.add(TextPiece("x" * 161))
    tool = FunctionSpec("look", "Look at it.", {"type": "object"})

    assert reply.usage_for(msgspec.structs.replace(request, tools=[tool])).input_tokens > (
        reply.usage_for(request).input_tokens + 5
    )


def test_a_window_that_cannot_be_sealed_is_an_error_of_the_request():
    with pytest.raises(ModelFault, match="at most 67108864 are possible") as caught:
        compact(compactor(), [message("x" * (64 * 1024 * 1024))], [TextPiece("ok"), Finished()])

    fault = caught.value
    assert (fault.code, fault.status, fault.kind) == ("compaction_too_large", 400, "invalid_request_error")


def test_messages_whose_images_were_replaced_do_not_come_back():
    url = "data:image/png;base64,".ljust(1_500_000, "A")
    shown = [
        items.read({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]})
        for _ in range(3)
    ]
    history = [item for image in shown for item in (image, message("seen", "assistant"))]
    used = Compactor(SEALER, "m", Budgets(2000, 20_000, 4000), client_history=history)
    done, _ = compact(used, history, [TextPiece("ok"), Finished()])
    sealed = items.read({"type": "compaction", "id": "cmp_1", "encrypted_content": done.encrypted_content})

    assert len(str(raws(done.user_messages))) < 2_000_000
    for sent in (done.user_messages, history):
        opened = run_now(open_history([], [*sent, sealed], SEALER, MODEL))
        assert raws(opened.before) == raws(done.window)


def test_another_model_reads_no_images():
    image = {"type": "input_image", "image_url": PIXEL}
    shown = items.read({"type": "message", "role": "user", "content": [image]})
    for is_other, count in ((False, 1), (True, 0)):
        _, [request] = compact(compactor(is_other_model=is_other), [shown], [TextPiece("ok"), Finished()])
        assert str(raws(request.items)).count(PIXEL) == count


def test_a_history_that_is_too_long_for_a_summary_is_sent_once_more_shorter():
    history = long_history()
    done, asked = compact(compactor(), history, [TOO_LONG], [TextPiece("short"), Finished()])

    assert done.note.method == "summary"
    first, second = asked
    assert len(second.items) < len(first.items)
    assert unpaired(second.items) == []
    assert second.items[0].raw == history[0].raw


def test_a_history_that_is_too_long_even_then_has_an_extract():
    done, asked = compact(compactor(), long_history(), [TextPiece("begun"), TOO_LONG], [TOO_LONG])

    assert (done.note.method, done.note.reason) == ("extract", "The model failed to write a summary: It is too long.")
    assert len(asked) == 2


def test_a_window_is_shorter_than_a_history_that_is_too_long_for_the_model():
    history = long_history()
    used = Compactor(SEALER, "m", Budgets(2000, 20_000, 4000))
    for last in ([TextPiece("short"), Finished()], [TOO_LONG]):
        done, _ = compact(used, history, [TOO_LONG], last)
        assert done.note.tokens_after < 0.7 * done.note.tokens_before
        assert unpaired(done.window) == []


def test_the_reply_to_the_first_request_is_not_part_of_the_summary():
    done, _ = compact(compactor(), long_history(), [TextPiece("LEFTOVER"), TOO_LONG], [TextPiece("whole"), Finished()])

    assert "LEFTOVER" not in str(raws(done.window))


def test_reasoning_counts_neither_as_summary_nor_against_its_budget():
    done, [request] = compact(
        compactor(), [*long_history(), reasoning("hm")], [ReasoningPiece("x" * 9999), TextPiece("ok"), Finished()]
    )

    assert done.note.method == "summary"
    assert request.max_output_tokens is not None
    assert request.max_output_tokens > 2 * BUDGETS.summary


def test_it_is_due_above_the_threshold_if_enough_would_be_dropped():
    history = long_history()
    used = compactor(threshold=1000)

    assert not used.is_due(history, 1000)
    assert used.is_due(history, 1001)
    assert not compactor(threshold=None).is_due(history, 10**6)
    assert not used.is_due([message("long " * 5000)], 5000)


def test_a_history_that_the_model_finds_too_long_becomes_shorter_whatever_the_threshold():
    history = long_history()
    used = Compactor(SEALER, "m", Budgets(2000, 20_000, 4000), threshold=100_000)
    smaller = used.shrink(history)

    assert not used.is_due(history, 100_001)
    assert smaller is not None
    done, _ = compact(smaller, history, [TextPiece("ok"), Finished()])
    assert done.note.tokens_after < 0.6 * done.note.tokens_before
    assert used.shrink([message("long " * 5000)]) is None
    assert used.shrink([]) is None
    assert compactor(threshold=None).shrink(history) is None


def test_a_compacted_window_is_not_due_again():
    """Otherwise a model that still finds it too long would be asked for ever."""
    code = [
        items.read(
            {
                "type": "code_interpreter_call",
                "id": f"ci_{number}",
                "container_id": f"cntr_{number}",
                "code": "print(1)\n" * 300,
                "outputs": [{"type": "logs", "logs": "1\n" * 3000}],
            }
        )
        for number in range(4)
    ]
    used = compactor(threshold=1000)
    done, _ = compact(used, [*long_history(), *code], [TextPiece("ok"), Finished()])

    assert not used.is_due(done.window, 10**6)


# ── random histories ─────────────────────────────────────────────────────────────────────────────────────────────────

_SUMMARY_REPLIES: list[list[list[Piece | Exception]]] = [
    [[TextPiece("A short summary."), Finished()]],
    [[TextPiece("概要 " * 60), Finished()]],
    [[Finished()]],
    [[RefusalPiece("No."), Finished()]],
    [[TextPiece("word " * 2000)]],
    [[ModelFault("It broke.")]],
    [[TOO_LONG], [TextPiece("A short summary."), Finished()]],
    [[TOO_LONG], [TOO_LONG]],
]
_ANSWERS: list[list[list[Piece | Exception]]] = [
    [[TextPiece("Done."), Finished()]],
    [[TOO_LONG], [TextPiece("Done."), Finished()]],
    [[TOO_LONG], [TOO_LONG], [TOO_LONG], [TOO_LONG]],
]


class RandomRunner(TurnRunner):
    """A turn whose requests for summaries have other replies than the rest."""

    def __init__(self, history: Sequence[Item], plan: CompactionPlan, *, summary: int, answer: int) -> None:
        super().__init__({"store": False}, history=history, compaction=lambda _: plan)
        self.written = [*_SUMMARY_REPLIES[summary]]
        self.answers = [*_ANSWERS[answer]]
        self.sent: list[tuple[bool, ModelRequest]] = []

    def reply(self, ask: Ask) -> list[Piece | Exception]:
        self.sent.append((ask.for_summary, ask.request))
        replies = self.written if ask.for_summary else self.answers
        if not replies:  # a second compaction of the same response
            replies += [*_SUMMARY_REPLIES[0]]
        return list(replies.pop(0))


def check_requests(runner: RandomRunner, history: Sequence[Item]) -> None:
    """Check all requests of a response to a history."""
    instructions = {message_digest(item) for item in history if is_instruction(item)}
    last_user = next((item.raw for item in reversed(history) if has_role(item, "user")), None)
    was_compacted = False
    for for_summary, request in runner.sent:
        was_compacted |= for_summary
        if was_compacted:
            assert unpaired(request.items) == []
        if for_summary:
            assert not any(
                item.type.endswith("_call") for item in unpaired([*request.items, function_call("end")])[:-1]
            )
        sent = {message_digest(item) for item in request.items if is_request_message(item)}
        assert instructions <= sent
        assert last_user is None or last_user in raws(request.items)


def check_budgets(compacted: Compacted, history: Sequence[Item]) -> None:
    tail = 0
    for item in reversed(history):
        if not is_request_message(item) or is_summary(item):
            break
        tail += estimate_item(item)
    window = compacted.window
    instructions = sum(estimate_item(item) for item in window if is_instruction(item))
    users = [estimate_item(item) for item in window if has_role(item, "user")]
    summaries = [item for item in window if is_summary(item)]
    assert len(summaries) == 1
    assert (
        instructions <= sum({message_digest(i): estimate_item(i) for i in history if is_instruction(i)}.values()) + tail
    )
    assert sum(users) <= BUDGETS.users + users[-1] if users else True
    header_and_identifiers = 60 + 40 * 64
    assert estimate_item(summaries[0]) <= 2 * BUDGETS.summary + header_and_identifiers
    open_ids = {id(item) for item in unpaired([*window, message("end", "assistant")])}
    calls = [item for item in window if item.type.endswith(("_call", "_call_output")) and id(item) not in open_ids]
    containers = [item for item in calls if item.type == "code_interpreter_call"]
    assert sum(estimate_item(item) for item in calls if item not in containers) <= BUDGETS.calls
    assert sum(map(estimate_item, containers)) <= BUDGETS.calls + 4 * (BUDGETS.calls // 4 + 40)


def compaction_items(runner: TurnRunner) -> list[Item]:
    return [items.read(item) for item in runner.turn.response.output if item["type"] == "compaction"]


rounds = st.lists(
    st.tuples(histories(), st.integers(0, len(_SUMMARY_REPLIES) - 1), st.integers(0, len(_ANSWERS) - 1)),
    min_size=1,
    max_size=4,
)


def with_own_instructions(kept: Sequence[Item], window: Sequence[Item]) -> list[Item]:
    """The window with the instructions of a client that keeps the history, if it has any."""
    instructions = {message_digest(item): item for item in kept if is_instruction(item)}
    rest = [item for item in window if not is_instruction(item)]
    return [*instructions.values(), *rest] if instructions else list(window)


@given(rounds)
def test_a_client_that_keeps_everything_continues_with_the_window(drawn):
    kept: list[Item] = []
    for added, summary, answer in drawn:
        kept += added
        opened = run_now(open_history([], kept, SEALER, MODEL))
        history = [*opened.before, *opened.given[opened.start :]]
        used = compactor(client_history=opened.given)
        plan = CompactionPlan(used, is_triggered=True, transcript=history, history=history)
        runner = RandomRunner(history, plan, summary=summary, answer=answer)
        response = runner.run()

        assert response.status == "completed"
        check_grammar(runner.events)
        check_requests(runner, history)
        assert runner.turn.compacted is not None
        check_budgets(runner.turn.compacted, history)
        [item] = compaction_items(runner)
        kept.append(item)
        again = run_now(open_history([], [*kept, message("next")], SEALER, MODEL))
        assert raws(again.before) == raws(with_own_instructions(kept, runner.turn.compacted.window))
        assert raws(again.given[again.start :]) == [message("next").raw]
        changed = [message("NEW RULE", "developer"), *kept]
        new = run_now(open_history([], changed, SEALER, MODEL))
        assert raws(new.before) == raws(with_own_instructions(changed, runner.turn.compacted.window))


@given(rounds)
def test_a_stored_history_continues_with_the_window_and_the_answer(drawn):
    stored: list[Item] = []
    for added, summary, answer in drawn:
        given_items = [*added, message("Go on.")]
        opened = run_now(open_history(stored, given_items, SEALER, MODEL))
        history = [*opened.before, *opened.given[opened.start :]]
        plan = CompactionPlan(compactor(threshold=1000), transcript=history, history=history)
        runner = RandomRunner(history, plan, summary=summary, answer=answer)
        response = runner.run()

        check_grammar(runner.events)
        check_requests(runner, history)
        stored += [*given_items, *map(items.read, response.output)]
        compacted = runner.turn.compacted
        if compacted is not None:
            end = max(index for index, item in enumerate(response.output) if item["type"] == "compaction")
            answers = [items.read(item) for item in response.output[:end] if item["type"] != "compaction"]
            check_budgets(compacted, [*history, *answers])
            last = max(index for index, item in enumerate(stored) if item.type == "compaction")
            again = run_now(open_history(stored, [message("next")], SEALER, MODEL))
            assert raws(again.before) == [*raws(compacted.window), *raws(stored[last + 1 :])]
        else:
            assert not any(for_summary for for_summary, _ in runner.sent)


@pytest.mark.parametrize("source", [{"file_id": "file-abcdefgh"}, {"image_url": "data:image/png;base64,eA=="}])
def test_attachments_of_a_changed_message_are_shown_as_before_the_compaction(source):
    image = {"type": "input_image", **source}
    shown = {"type": "input_text", "text": "[attached image: a.png, for your tools to read]"}
    other = {"type": "input_file", "file_url": "https://x.example/a.pdf"}
    stored, read = (items.read({"role": "user", "content": [part]}) for part in (image, shown))
    changed = items.read({"role": "user", "content": [image, other]})
    plan = CompactionPlan(transcript=[stored], history=[read])

    [first, second] = plan.with_attachments([stored, changed])
    assert first is read
    assert second.raw["content"] == [shown, other]
