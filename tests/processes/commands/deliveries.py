"""A process over two deciders, with timers and refusals: its outcome does not depend on what is killed, and when.

`EXTRA=1` is the next version of its code: it commands something before all else.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

from millrace import Decider, Emit
from millrace.commands.processes import Do, RefusedCommand, on, on_refused, process, starts
from millrace.event_store import Event

SOON = timedelta(seconds=0.2)


@dataclass(frozen=True)
class Book:
    order: str
    what: str


def book(command: Book, booked: int) -> list[Emit]:
    if command.what == "5":
        raise ValueError("the fifth is refused")
    assert booked >= 0
    return [Emit("booked", {"order": command.order, "what": command.what}), Emit("counted", {})]


LEDGER, STOCK = (
    Decider(name=name, initial=0, decide=book, evolve=lambda booked, _: booked + 1) for name in ("ledger", "stock")
)


@process(view="delivery", key={"order": "decider_id", "payment": "data.order"}, start="-infinity", lock_timeout_s=1)
class Delivery:
    """An order is paid, or asked for three times and given up."""

    paid: bool = False
    asked: int = 0
    refusals: int = 0

    @starts("placed")
    def placed(self, placed: Event, do: Do) -> None:
        if os.environ.get("EXTRA"):
            do.command(LEDGER, "extra", Book(placed.decider_id, "extra"))
        # streams that many instances command at once
        do.command(STOCK, f"s-{placed.data['n'] % 3}", Book(placed.decider_id, f"{placed.data['n'] % 7}"))
        do.command(LEDGER, "all", Book(placed.decider_id, "order"))
        do.timer("pay", after=timedelta(days=1) if placed.data["pays"] else SOON, event="overdue")

    @on("taken", wait=timedelta(days=1))
    def taken(self, _: Event, do: Do) -> None:
        self.paid = True
        do.cancel("pay")
        do.command(LEDGER, "all", Book(self.key, "payment"))  # type: ignore[attr-defined]
        do.end()

    @on("overdue")
    def overdue(self, _: Event, do: Do) -> None:
        self.asked += 1
        do.command(LEDGER, f"l-{self.asked}", Book(self.key, f"letter {self.asked}"))  # type: ignore[attr-defined]
        if self.asked == 3:
            do.end()
        else:
            do.timer("pay", after=SOON, event="overdue")

    @on_refused(Book)
    def refused(self, refused: RefusedCommand, do: Do) -> None:
        self.refusals += 1
        do.command(STOCK, "s-rest", Book(refused.command.order, "rest"))
