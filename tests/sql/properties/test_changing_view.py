"""Random lives of a view that is consumed in one mode, then in the other: the second goes on where the first left off.

Belongs here: changing the mode. Not here: what consumers do in either (test_rows_view, test_bulk_view).
"""

from collections.abc import Callable

import pytest
from hypothesis.stateful import rule

from millrace.resources.errors import WrongMode
from millrace.resources.event_store import Lease, StreamFailure
from tests.sql.properties.test_bulk_view import BulkLife
from tests.sql.properties.test_rows_view import RowsLife
from tests.support.factories import Connect, refusal
from tests.support.views.view_lives import LIMIT_S, consumers, live, picks, stream_numbers


class ChangingLife(RowsLife, BulkLife):
    """A view that is consumed in one mode, then in the other."""

    first_mode = "rows"

    @rule()
    def change_mode(self) -> None:
        other = "bulk" if self.mode == "rows" else "rows"

        def call() -> object:
            return self.operator.register_view("v", mode=other, **self.filters)

        if self.succeeds_if_idle(call):
            self.mode = other
            self.end_deliveries()

    @rule(pick=picks)
    def call_for_the_other_mode(self, pick: int) -> None:
        store = self.operator
        lease = Lease(0, 0, 0, 1)
        calls: dict[str, list[Callable[[], object]]] = {
            "bulk": [
                lambda: store.dispatch_events("v"),
                lambda: store.lease_events("v"),
                lambda: store.ack_event("v", "o-1", 1),
                lambda: store.ack_events("v", [1]),
                lambda: store.nack_event("v", "o-1"),
                lambda: store.fail_event("v", "o-1", 1, "it failed"),
                lambda: store.extend_lock("v", "o-1", 1),
            ],
            "rows": [
                lambda: store.claim_batch("v", "me"),
                lambda: store.claim_partition("v", 0, "me"),
                lambda: store.read_batch("v", lease),
                lambda: store.commit_batch("v", [lease]),
                lambda: store.fail_streams("v", lease, [StreamFailure("order", "o-1", "it failed")]),
                lambda: store.release_batch("v", [lease]),
                lambda: store.extend_lease("v", [lease]),
            ],
        }
        choice = calls[self.mode]
        refusal(WrongMode, choice[pick % len(choice)])

    @rule(number=consumers, stream=stream_numbers)
    def change_mode_when_idle(self, number: int, stream: int) -> None:
        """Change the mode while a stream is acknowledged beyond the checkpoint, or waits."""
        if self.mode == "rows":
            self.run_ahead(number, stream)
        else:
            self.build(number, 2)
        for consumer in self.consumers:
            self.end(consumer, commit=True)
        self.pass_time(3600)
        self.change_mode()
        if self.mode == "bulk":
            self.build(number, 1)

    def fail_with_everything(self, number: int) -> None:
        (RowsLife if self.mode == "rows" else BulkLife).fail_with_everything(self, number)

    def drain(self) -> None:
        (RowsLife if self.mode == "rows" else BulkLife).drain(self)


@pytest.mark.timeout(LIMIT_S)
def test_every_wanted_event_of_a_view_that_changes_its_mode_is_acknowledged_once_in_order(
    connect: Connect, pytestconfig: pytest.Config
) -> None:
    live(ChangingLife, connect, pytestconfig)
