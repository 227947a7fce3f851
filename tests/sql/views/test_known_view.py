"""What is said of a view that is consumed in the other mode."""

import re

from millrace.resources.errors import WrongMode
from millrace.resources.event_store import EventStore
from tests.support.factories import refusal, rows


def calls_of(store: EventStore, mode: str) -> set[str]:
    """Return the public functions that refuse a view of another mode: those that ask for it, and their callers."""
    functions = rows(
        store.connection,
        """
        select proname, prosrc, pronamespace = 'event_store'::regnamespace and prosecdef from pg_proc
        where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
        """,
    )
    asking = re.compile(rf"\b(?:known_view|own_view)\(\w+, '{mode}'\)")
    found = {name for name, source, _ in functions if asking.search(source)}
    while more := {
        name
        for name, source, _ in functions
        if name not in found and any(re.search(rf"\bevent_store(_private)?\.{known}\(", source) for known in found)
    }:
        found |= more
    # it passes over unwanted events of bulk views, which it looks up itself
    return found & {name for name, _, for_everybody in functions if for_everybody} - {"raise_low_water_mark"}


def test_the_hint_names_every_call_of_each_mode(orders: EventStore) -> None:
    orders.register_view("rows")
    orders.register_view("bulk", mode="bulk")
    said = str(refusal(WrongMode, lambda: orders.claim_batch("rows", "me")).hint)
    assert said == refusal(WrongMode, lambda: orders.stream_events("bulk")).hint
    named = {mode: re.findall(r"\w+", calls) for mode, calls in re.findall(r"(rows|bulk): ([^.]+)\.", said)}
    assert {mode: set(calls) for mode, calls in named.items()} == {m: calls_of(orders, m) for m in ("rows", "bulk")}
