"""Folds that return values no table holds, or fail in odd ways: a round accepts the same as the view's own drain."""

import json
from collections.abc import Callable
from typing import Any, cast

from millrace import fold
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State
from tests.support.building.drains import Counted, staged, thing
from tests.support.building.lab import Lab
from tests.support.building.poison import locks
from tests.support.building.read_models import DECIDER
from tests.support.hostile_json import WORDS
from tests.support.patience import patience
from tests.support.sql_calls import append_events


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


# results and faults of a fold, by the text of an event
ODDITIES: dict[str, Callable[[], Any]] = {
    "nan": lambda: {"n": float("nan")}, "infinite": lambda: {"x": float("inf")}, "huge": lambda: {"n": 10**400},
    "beyond digits": lambda: {"x": 10**5000}, "half a surrogate in the state": lambda: {"t": "ok", "hidden": "\ud800"},
    "half a surrogate in a column": lambda: {"t": "\udfff"}, "nul in the state": lambda: {"t": "ok", "hidden": "a\0b"},
    "nul in a column": lambda: {"t": "a\0b"}, "a mebibyte": lambda: {"t": "x" * 2**20},
    "letters that JSON escapes": lambda: {"t": "ok", "hidden": "ä" * 2**16},
    "deep": lambda: {"t": "ok", "hidden": json.loads('{"a":' * 500 + "1" + "}" * 500)},
    "in itself": lambda: {"hidden": in_itself()}, "a tuple": lambda: {"hidden": (1, 2)}, "no dict": lambda: [1],
    "keys of numbers": lambda: {1: 2}, "words": lambda: {"t": "ok", "hidden": [*WORDS]},
    "a wrong type": lambda: {"n": "1"}, "a boolean number": lambda: {"n": True}, "minus nought": lambda: {"d": -0.0},
    "a least double": lambda: {"d": 5e-324}, "the end of time": lambda: {"at": "9999-12-31T23:59:59.999999+14:00"},
    "the beginning of time": lambda: {"at": "0001-01-01T00:00:00-14:00", "day": "0001-01-01"},
    "before time": lambda: {"at": "0001-01-01T00:00:00+14:00"},
    "as many digits as there are": lambda: {"x": "9" * 38, "y": "0." + "9" * 38},
    "a digit more": lambda: {"x": "9" * 39}, "a number too small": lambda: {"y": "1e-39"},
}  # fmt: skip


# with these a stream waits: no table holds them, or JSON would change them
REFUSED = {
    "nan", "infinite", "huge", "beyond digits", "half a surrogate in a column", "nul in a column", "in itself",
    "before time", "a tuple", "no dict", "keys of numbers", "a wrong type", "a boolean number", "a digit more", "a number too small",
    "raise",
}  # fmt: skip


@fold(
    view="odd",
    deciders=[DECIDER],
    key="thing_id",
    columns={
        "n": "bigint", "d": "double", "t": "string", "x": "decimal(38,0)", "y": "decimal(38,38)", "at": "timestamp",
        "day": "date",
    },
)  # fmt: skip
def odd(before: State | None, event: FoldEvent) -> State:
    """One row per thing: whatever the event names."""
    told = event.data.get("text")
    if told == "raise":
        raise ValueError(f"\ud800 \0 {'x' * 2**20}\n second line")
    return cast("State", ODDITIES[told]() if told in ODDITIES else {"n": (before or {}).get("n", 0)})


Odd = cast("ReadModel", odd)


def test_whatever_a_fold_returns_both_doors_take_the_same(lab: Lab) -> None:
    models = [Odd, Counted]
    events = [thing(f"{told} {n}", text=told if n == 1 else "nothing") for told in ODDITIES for n in range(2)]
    append_events(lab, [*events, thing("raise 1", text="raise")])
    assert lab.share(models) == {"odd": None, "counted": None}
    assert {name for name, _ in locks(lab)} == {f"{name} 1" for name in REFUSED}
    for (why,) in lab.rows("select last_error from event_store.stream_locks"):
        assert "\n" not in why
        assert len(why.encode()) <= 4000

    # a drain of the view's own accepts the same values as a round
    taken = sorted({*ODDITIES} - REFUSED)
    append_events(lab, [thing(f"{told} staged", text=told) for told in taken])
    with lab.consumer(Odd, "by itself") as consumer:
        staged(consumer).drain(budget_s=patience(), idle_s=0)
    for told in taken:
        (both,) = lab.rows(
            "select count(*), count(distinct (n, d, t, x, y, at, day)) from read_models.odd where thing_id in (%s, %s)",
            f"{told} 1",
            f"{told} staged",
        )
        assert both == (2, 1), told
