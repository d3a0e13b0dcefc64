from __future__ import annotations

import pytest

from antwort.api import events as wire
from antwort.api.responses import Response
from antwort.engine.fold import fold


def response(status, output=()) -> Response:
    return Response(id="resp_1", created_at=1, model="m", status=status, output=list(output))


def test_items_come_from_their_own_events_in_their_order_and_the_rest_from_the_last_word():
    first, second = ({"id": name, "type": "message", "status": "completed"} for name in ("msg_1", "msg_2"))
    folded = fold(
        [
            wire.ResponseCreated(response=response("in_progress")),
            wire.OutputItemAdded(output_index=1, item={**second, "status": "in_progress"}),
            wire.OutputItemDone(output_index=1, item=second),
            wire.OutputItemDone(output_index=0, item=first),
            wire.ResponseCompleted(response=response("completed")),
        ]
    )

    assert (folded.status, folded.output) == ("completed", [first, second])


def test_what_was_not_finished_when_it_ended_is_incomplete():
    item = {"id": "msg_1", "type": "message", "status": "in_progress"}
    begun = [wire.ResponseCreated(response=response("in_progress")), wire.OutputItemAdded(output_index=0, item=item)]

    assert fold(begun).output == [item]
    ended = fold([*begun, wire.ResponseFailed(response=response("failed"))])
    assert ended.output == [{**item, "status": "incomplete"}]


def test_events_of_no_response_are_none():
    with pytest.raises(ValueError, match="no event tells"):
        fold([])
