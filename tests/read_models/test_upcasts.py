"""Read models read events in their newest shape; a new shape rebuilds the models if it touches their columns."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from pydantic import BaseModel

from millrace import Decider, Emit, event_schemas, fold, handle, last, read_model, set_union, stream_id, sum_
from millrace.archive.writer import archive_partition
from millrace.drain.as_of import build_as_of
from millrace.drain.diff import diff_with_serving
from millrace.drain.loop import Drain
from millrace.drain.view_drain import ViewDrain
from millrace.event_schemas import default, rename, scale
from millrace.event_schemas.model import DeclaredEvent, declared_event
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.read_models import recompute
from millrace.read_models.declared.fold_event import FoldEvent
from millrace.read_models.declared.upcasts import Overtaken, Upcast, require_known, stored_upcasts, touching
from millrace.read_models.stored.versions import EventsNotRegistered, current_version, versions, with_upcasts
from tests.support.building.drains import staged
from tests.support.building.lab import Lab
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TO_2 = [rename("total", "price.amount"), default("price.currency", "EUR")]
TO_3 = [scale("price.amount", 2), rename("price", "cost")]
# more digits than a float has
RATE = "0.12345678901234567890"


@read_model(view="sums", deciders=["order"], key=["order_id"])
class Sums:
    """What an order costs."""

    order_id = stream_id()
    cents = sum_("data.cost.amount", events=["placed"])
    currencies = set_union("data.cost.currency")
    rate = last("data.rate", events=["placed"])


@read_model(view="notes", deciders=["order"], key=["order_id"])
class Notes:
    """What was said last."""

    order_id = stream_id()
    note = last("data.note")


@fold(view="folded", deciders=["order"], key="order_id", columns={"costs": "string"})
def folded(state: dict[str, Any] | None, event: FoldEvent) -> dict[str, Any] | None:
    """Return all costs of an order, as text."""
    before = state["costs"] if state else ""
    return {"costs": f"{before} {sorted(event.data.get('cost', {}).items())}"}


@recompute(
    view="recomputed", deciders=["order"], key=["order_id", "amount"], columns={"amount": "string", "n": "bigint"}
)
def recomputed(events: "DataFrame") -> "DataFrame":
    """Return how often an order has an amount."""
    from pyspark.sql import functions as f

    amount = f.get_json_object("data", "$.cost.amount")
    amounts = events.select("decider_id", amount.alias("amount")).groupBy("decider_id", "amount")
    return amounts.agg(f.count("amount").alias("n"))


MODELS = [cast("ReadModel", one) for one in (Sums, Notes, folded, recomputed)]
TOUCHED = [model for model in MODELS if model.name != "notes"]
WANTED: dict[str, list[tuple[Any, ...]]] = {
    "sums": [("o-1", 3325, ["CHF", "EUR"], RATE), ("o-2", 50, ["EUR"], RATE)],
    "notes": [("o-1", "new"), ("o-2", None)],
    "folded": [
        ("o-1", " [('amount', 1250), ('currency', 'EUR')] [('amount', 75), ('currency', 'CHF')] []"
         " [('amount', 2000), ('currency', 'EUR')]"),
        ("o-2", " [('amount', 50), ('currency', 'EUR')]"),
    ],
    "recomputed": [("o-1", None, 0), ("o-1", "1250", 1), ("o-1", "2000", 1), ("o-1", "75", 1), ("o-2", "50", 1)],
}  # fmt: skip


def placed(stream: str, version: int, data: dict[str, Any], event: str = "placed") -> BatchEvent:
    return BatchEvent("order", stream, event, uuid4(), data, uuid4(), event_version=version)


def append(store: PlatformStore, *events: BatchEvent) -> None:
    append_events(store, events)
    store.sequence_events()


@pytest.fixture
def lab(store: PlatformStore, dsn: str, spark: "SparkSession") -> Lab:
    """Return a store with events of version 1, and one of an event that has no versions."""
    for event in ("placed", "said"):
        store.register_decider_event("order", event, f"an order was {event}")
    append(store, placed("o-1", 1, {"total": 12.50, "note": "old"}))
    return Lab(store.connection, dsn, spark)


def evolve(store: PlatformStore) -> None:
    store.register_event_upcast("order", "placed", 2, TO_2)
    append(store, placed("o-1", 2, {"price": {"amount": 0.75, "currency": "CHF"}}), placed("o-2", 1, {"total": 0.5}))
    moves = json.dumps([*TO_3, default("rate", 0)]).replace('"value": 0', f'"value": {RATE}')
    store.connection.execute("select event_store.register_event_upcast('order', 'placed', 3, %s::jsonb)", (moves,))
    append(store, placed("o-1", 1, {"note": "new", "total": "x"}, "said"))
    append(store, placed("o-1", 3, {"cost": {"amount": 2000, "currency": "EUR"}}))


def together(lab: Lab, _: Path) -> None:
    with lab.together(MODELS) as shared:
        shared.run(budget_s=patience(), idle_s=0)
    lab.drain(cast("ReadModel", recomputed))


def alone(lab: Lab, _: Path) -> None:
    for model in MODELS:
        with lab.consumer(model) as consumer:
            staged(consumer).drain(budget_s=patience(), idle_s=0)


def rebuilt(lab: Lab, root: Path) -> None:
    together(lab, root)
    for model in MODELS:
        lab.rebuild(model, archive=root)


def from_archive(lab: Lab, root: Path) -> None:
    for partition in range(16):
        archive_partition(lab.dsn, root, partition, max_events=4, min_events=1, tail=True)
    rebuilt(lab, root)


@pytest.mark.parametrize("door", [together, alone, rebuilt, from_archive])
def test_every_door_makes_rows_of_the_newest_shape(lab: Lab, door: Callable[[Lab, Path], None], tmp_path: Path) -> None:
    evolve(lab)
    door(lab, tmp_path)
    assert {model.name: lab.rows_of(model) for model in MODELS} == WANTED


def test_a_new_shape_builds_anew_what_it_touches_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    together(lab, tmp_path)
    evolve(lab)
    serving = {model.name: lab.rows_of(model) for model in MODELS}
    for model in MODELS:
        assert (current_version(lab.connection, model) is None) == (model in TOUCHED), model.name
    together(lab, tmp_path)
    assert serving != WANTED
    assert {model.name: lab.rows_of(model) for model in MODELS} == WANTED
    for model in MODELS:
        assert [one.version for one in versions(lab.connection, model.name)] == [1 + (model in TOUCHED)]
    # a recomputed model reads a stream again from its first event on
    append(lab, placed("o-2", 3, {"cost": {"amount": 7, "currency": "EUR"}}))
    lab.drain(cast("ReadModel", recomputed))
    assert lab.rows_of(cast("ReadModel", recomputed))[-2:] == [("o-2", "50", 1), ("o-2", "7", 1)]


def test_models_are_right_after_a_wrong_upcast_is_taken_back(lab: Lab) -> None:
    folded_ = cast("ReadModel", folded)

    def built() -> list[tuple[Any, ...]]:
        lab.drain(folded_)
        return lab.rows_of(folded_)

    def named() -> list[tuple[str, str]]:
        return [(each.subject, each.severity) for each in lab.standing() if each.kind == "new_shape"]

    append(lab, placed("o-2", 1, {"cost": {"amount": 1}}))
    right = built()
    lab.register_event_upcast("order", "said", 2, [scale("cost.amount", 2)])
    lab.register_event_upcast("cart", "placed", 2, [scale("cost.amount", 2)])
    lab.register_event_upcast("order", "placed", 2, [scale("cost.amount", 2)])
    read_with = stored_upcasts(lab.connection)
    assert built() != right
    assert named() == [("folded", "note")]
    (cause,) = (each.cause for each in lab.standing() if each.kind == "new_shape")
    assert "an upcast of placed of order to version 2. postgres registered an upcast of said" in cause
    assert "cart" not in cause
    # as many upcasts as before, but a different one: a running drain does not know it
    lab.withdraw_registration("order", "placed", 2, "upcast")
    require_known(lab.connection, stored_upcasts(lab.connection))
    lab.register_event_upcast("order", "placed", 2, [])
    with pytest.raises(Overtaken):
        require_known(lab.connection, read_with)
    assert built() == right
    lab.withdraw_registration("order", "placed", 2, "upcast")
    lab.register_event_upcast("order", "placed", 2, [rename("cost.amount", "cost.n")])
    assert built()[1] == ("o-2", " [('n', 1)]")
    lab.execute("set event_store.clock = '2126-01-01 00:00:00+00'")
    assert named() == []


@pytest.mark.parametrize("is_shared", [True, False])
def test_no_row_that_was_read_without_a_known_upcast_is_committed(lab: Lab, is_shared: bool) -> None:
    # between the claim and the read: the drain knows no upcast
    late, sums = lab.once(lambda: evolve(lab)), cast("ReadModel", Sums)
    if is_shared:
        with Drain(lab.dsn, [sums], late, "rounds") as shared:
            shared.run(budget_s=patience(), idle_s=0)
            assert shared.overtaken == ["sums"]
    else:
        with ViewDrain(lab.dsn, sums, late, "next") as consumer:
            assert staged(consumer).drain(budget_s=patience(), idle_s=0).events == 0
    assert lab.rows_of(sums) == []
    with lab.consumer(replace(sums, upcasts=()), "old") as consumer, pytest.raises(Overtaken):
        consumer.rebuild(*range(16))
    lab.drain(sums)
    assert lab.rows_of(sums) == WANTED["sums"]


def test_a_command_is_decided_on_the_newest_shape_with_or_without_snapshot(lab: Lab) -> None:
    seen: list[Any] = []

    def decide(_: str, state: dict[str, Any] | None) -> list[Emit]:
        seen.append(state)
        return []

    def snapshot_version() -> int | None:
        snapshot = lab.stream_state("folded", decider.fingerprint, "order", "o-1")
        return snapshot.version if snapshot else None

    decider = Decider(name="order", initial=None, decide=decide, evolve=folded)
    lab.drain(cast("ReadModel", folded))
    assert snapshot_version() == 1
    # upcasts that leave data unchanged, or belong to another event
    lab.register_event_upcast("order", "said", 2, [])
    lab.register_decider_event("cart", "placed", "a cart was placed")
    lab.register_event_upcast("cart", "placed", 2, TO_2)
    assert snapshot_version() == 1
    evolve(lab)
    # the snapshot has the old shape; later events are read in the new one
    assert snapshot_version() is None
    handle(lab, decider, "o-1", "look")
    lab.drain(cast("ReadModel", folded))
    assert snapshot_version() == 4
    handle(lab, decider, "o-1", "look")
    assert [state["costs"] for state in seen] == [WANTED["folded"][0][1]] * 2


@event_schemas.event(decider="order", name="placed", version=3, upcasts={2: TO_2, 3: [*TO_3, default("rate", 0.5)]})
class Placed(BaseModel):
    """An order was placed."""


PLACED = cast("DeclaredEvent", declared_event(Placed))
# as `declared` makes it from a package: the code knows the newest shape, the store does not yet
AHEAD = replace(cast("ReadModel", Sums), declared_events=(PLACED,))
OLD_ROWS = [("o-1", 1250, ["EUR"], "0.5")]


def shared(lab: Lab) -> None:
    with lab.together([cast("ReadModel", Notes), AHEAD]) as drains:
        drains.run(budget_s=patience(), idle_s=0)


@pytest.mark.parametrize("door", [shared, lambda lab: lab.drain(AHEAD)])
def test_what_is_declared_is_registered_before_a_row_is_built(lab: Lab, door: Callable[[Lab], None]) -> None:
    assert current_version(lab.connection, AHEAD) is None
    door(lab)
    assert lab.rows_of(AHEAD) == OLD_ROWS
    assert [upcast.to_version for upcast in stored_upcasts(lab.connection)] == [2, 3]
    # the version built with the declared upcast is the same as with the stored one
    built = current_version(lab.connection, AHEAD)
    assert built is not None
    assert (built.version, built.unregistered) == (1, ())
    assert built.fingerprint == with_upcasts(lab.connection, cast("ReadModel", Sums)).fingerprint


def test_a_diff_and_a_past_register_nothing(lab: Lab) -> None:
    renamed = replace(PLACED, version=2, upcasts={2: [rename("total", "price.amount")]})
    now = replace(AHEAD, columns={"total": last("data.price.amount")}, declared_events=(renamed,))
    lab.drain(replace(now, columns={"total": last("data.total")}, declared_events=()))
    found = diff_with_serving(lab.dsn, now, lab.session).outcome
    assert found is not None
    assert (found.rows_before, found.differs) == (1, False), found
    past = build_as_of(lab.dsn, now, lab.session, lab.mark_log("now"))
    assert lab.rows(f"select * from read_models.{past.name}") == [("o-1", "12.5")]
    assert stored_upcasts(lab.connection) == ()


def test_where_it_may_not_be_registered_nothing_is_built_and_that_is_said(lab: Lab) -> None:
    lab.register_event_upcast("order", "placed", 2, [rename("total", "elsewhere")])
    # the store has another upcast to version 2, and never gets this one to version 3
    unlike = replace(AHEAD, declared_events=(replace(PLACED, upcasts={2: TO_2, 3: TO_3}),))
    said = "(?s)reads event placed of decider order in version 3, .*no upcast to it.*another upcast.*millrace migrate"
    with pytest.raises(EventsNotRegistered, match=said):
        lab.drain(unlike)
    with lab.together([unlike, cast("ReadModel", Notes)]) as drains:
        drains.run(budget_s=patience(), idle_s=0)
        assert ["in version 3" in (member.away or "") for member in drains.members] == [True, False]
    broken = replace(AHEAD, declared_events=None)
    with pytest.raises(EventsNotRegistered, match="not built anew while a file of events fails to load"):
        lab.drain(broken)
    assert versions(lab.connection, "sums") == []
    # a version that is already built is still drained
    lab.drain(cast("ReadModel", Sums))
    lab.drain(broken)


def moved(to_version: int, *moves: dict[str, Any], event: str = "placed") -> Upcast:
    return Upcast("order", event, to_version, json.dumps(moves))


def test_a_path_is_touched_by_moves_of_it_its_parents_and_its_origins() -> None:
    drop = {"move": "drop", "path": ["old", "a"]}
    first = {"move": "default", "path": ["new", "b"], "value": 1}
    to_new = {"move": "rename", "path": ["old"], "to": ["new"]}
    known = [moved(2, drop, first), moved(3, to_new), moved(3, {"move": "drop", "path": ["new"]}, event="said")]

    def numbers(*path: str) -> list[tuple[str, int]]:
        return [(event, version) for _, event, version, _ in touching(path, known)]

    assert numbers("new") == [("said", 3), ("placed", 3), ("placed", 2), ("placed", 2)]
    assert numbers("new", "a") == [("said", 3), ("placed", 3), ("placed", 2)]
    assert [move for *_, move in touching(("new", "a"), known)][1:] == [to_new, drop]
    assert [move for *_, move in touching(("new", "b", "c"), known)][1:] == [to_new, first]
    assert numbers("old") == [("placed", 3), ("placed", 2)]
    assert numbers("other") == numbers("newer") == []
    assert len(touching((), known)) == 4


def test_only_upcasts_that_a_column_looks_at_are_in_its_fingerprint() -> None:
    sums = cast("ReadModel", Sums)
    amount = moved(2, {"move": "scale", "path": ["cost", "amount"], "power": 2})
    assert replace(sums, upcasts=()).fingerprint == sums.fingerprint
    touched = replace(sums, upcasts=(amount,))
    assert touched.fingerprint.partition("+")[0] == sums.fingerprint.partition("+")[0]
    assert touched.fingerprint != sums.fingerprint
    assert touched.seen_upcasts == (amount,)
    for untouched in (replace(amount, event="said"), replace(amount, decider="cart"), moved(2)):
        model = replace(sums, upcasts=(untouched,))
        assert (model.fingerprint, model.seen_upcasts) == (sums.fingerprint, ())
    # for a model of elements, only the array decides whether the upcast touches it
    of_each = replace(sums, each="data.cost.lines", columns={"n": last("item.n"), "note": last("data.note")})
    assert replace(of_each, upcasts=(amount,)).seen_upcasts == ()
    assert len(replace(of_each, upcasts=(moved(2, {"move": "drop", "path": ["cost"]}),)).seen_upcasts) == 1
    assert with_upcasts(None, touched) is touched  # type: ignore[arg-type]


def test_of_a_path_with_very_many_origins_all_moves_count() -> None:
    many = [{"move": "rename", "path": ["k", key], "to": ["k"]} for key in "ab" * 50]
    elsewhere = {"move": "drop", "path": ["other"]}
    assert len(touching(("k",), [moved(2, elsewhere, *many)])) == 101
    assert len(touching(("k",), [moved(2, elsewhere, *many[:4])])) == 4
