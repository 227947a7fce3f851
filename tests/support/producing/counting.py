"""Work with countable effects."""

from millrace.event_store import Json
from millrace.producers.exactly_once import ExactlyOnce, Transaction
from tests.support.factories import new_event, value


class Counting:
    """Work that adds 1 to a total, appends an event, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.fails: list[Exception] = []

    def __call__(self, transaction: Transaction) -> Json:
        self.runs += 1
        total = (transaction.state("total") or 0) + 1
        transaction.append_all([new_event("a").alone])
        transaction.set_state("total", total)
        if self.fails:
            raise self.fails.pop(0)
        return {"total": total}


def total(once: ExactlyOnce, partition: int = 0) -> Json:
    entries = {entry.key: entry.value for entry in once.store.get_producer_state("p", partition)}
    assert value(once.store.connection, "select count(*) from event_store.events") == entries.get("total", 0)
    found: Json = entries.get("total")
    return found
