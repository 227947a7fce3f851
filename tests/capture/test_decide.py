"""Decisions from facts to steps or refusals. Without a database: the facts are made up."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from millrace.capture import decide as deciding
from millrace.capture.decide import Begin, Follow, Lose, Publish, Refuse, Skip, Step
from millrace.capture.declaration import ACTIONS, Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.facts import Facts, Tables
from millrace.capture.source.connection import SourceIdentity
from millrace.capture.source.probe import LOCKED
from millrace.capture.source.readiness import NotReady, Readiness
from millrace.capture.source.slot import SlotState
from millrace.capture.source.tables import SourceColumn, SourceTable
from millrace.capture.source.timelines import Timelines, TimelinesUnknown
from millrace.capture.store import CaptureLease, RegisteredTable
from millrace.errors import InvalidCapture

NOW = datetime(2024, 5, 1, tzinfo=UTC)
IDENTITY = SourceIdentity("77", "shop", 2)
ONE, TWO = Timelines.parse("1 0/10, 2"), Timelines.parse("1 0/10, 2 0/50, 3")
UNKNOWN = TimelinesUnknown("It does not say so.")
SLOT = SlotState("s", "pgoutput", "shop", None, Lsn(0x40), Lsn(0x30), "reserved", None, None, None, None, 0, 0, 0)
LEASE = CaptureLease("c", 7, NOW, 3, "77", "shop", "s", "s", Lsn(0x40), None, Lsn(0x40), -1, False, str(ONE))
FACTS = Facts(LEASE, IDENTITY, ONE, Lsn(0x60), SLOT)
# the log of another server, which continued without the stored changes from 0/20 on
OTHER = Timelines.parse("1 0/10, 2 0/20, 3")


def leased(**other: Any) -> Facts:  # noqa: ANN401 - passed on
    return replace(FACTS, lease=replace(LEASE, **other))


def slot(**other: Any) -> Facts:  # noqa: ANN401 - passed on
    return replace(FACTS, slot=replace(SLOT, **other))


def elsewhere(at: int | None, known: Timelines | None = ONE, came: Timelines = TWO, *, stored: int = 0x40) -> Lose:
    common = None if at is None else Lsn(at)
    return Lose(
        common,
        Lsn(stored),
        f"Another server took over at {common}, without what was captured from there to {Lsn(stored)}: the source's log"
        f" came through timelines {came}; captured were {known}.",
    )


def lost(reason: str, stored: int = 0x40) -> Lose:
    return Lose(Lsn(stored), None, reason)


ANOTHER = "The source is database {} of cluster {}; the slot was made in shop of 77."
SET_BACK = "The source was set back to an earlier time: its log ends at 0/3F; stored is 0/40."
REMOVED = "Slot s is lost: the source removed log that it needs."
BEGIN = (Begin(IDENTITY, ONE),)
NEVER = {"source_generation": None, "stored_lsn": None, "timelines": None}
ELSEWHERE = replace(FACTS, identity=replace(IDENTITY, database="test"))
BEFORE = replace(slot(confirmed_flush_lsn=Lsn(0x20)), timelines=OTHER)
TAKEN = Follow(TWO, Lsn(0x50), elsewhere(0x50))
TAKEN_BEFORE = Follow(OTHER, Lsn(0x20), elsewhere(0x20, came=OTHER))
DECISIONS: Mapping[str, tuple[Facts, tuple[Step, ...]]] = {
    "it goes on": (FACTS, ()),
    "the slot is behind the store, which is compared": (slot(confirmed_flush_lsn=Lsn(0x38)), ()),
    "the log ends where the store does": (replace(FACTS, flushed=Lsn(0x40)), ()),
    "a gap is open": (leased(gap=True), (Refuse(),)),
    "a gap is open, and the slot is gone": (replace(leased(gap=True), slot=None), (Refuse(),)),
    "a gap is open, and the source says little": (replace(leased(gap=True), timelines=UNKNOWN), (Refuse(),)),
    "it never ran": (replace(leased(**NEVER), slot=None), BEGIN),
    "a try that made a slot was killed": (leased(**NEVER), BEGIN),
    "another database": (ELSEWHERE, (lost(ANOTHER.format("test", "77")),)),
    "another database that says little": (replace(ELSEWHERE, timelines=UNKNOWN), (lost(ANOTHER.format("test", "77")),)),
    "another cluster": (
        replace(FACTS, identity=replace(IDENTITY, system_identifier="78")), (lost(ANOTHER.format("shop", "78")),),
    ),
    "the source was set back": (replace(FACTS, flushed=Lsn(0x3F)), (lost(SET_BACK),)),
    "set back, and the slot is gone": (replace(FACTS, flushed=Lsn(0x3F), slot=None), (lost(SET_BACK),)),
    "the slot is gone": (replace(FACTS, slot=None), (lost("There is no slot s any more."),)),
    "the slot's log was removed": (slot(wal_status="lost"), (lost(REMOVED),)),
    "the slot keeps no log": (slot(restart_lsn=None), (lost(REMOVED),)),
    "the slot is no longer good": (slot(invalidation_reason="idle_timeout"), (lost("Slot s is lost: idle_timeout."),)),
    "the slot was moved on": (
        slot(confirmed_flush_lsn=Lsn(0x41)), (lost("Slot s was moved to 0/41 by another program; stored is 0/40."),),
    ),
    "the slot was never ready": (
        slot(confirmed_flush_lsn=None), (lost("Slot s was moved to None by another program; stored is 0/40."),),
    ),
    "another server took over after what is stored": (replace(FACTS, timelines=TWO), (TAKEN,)),
    "it took over where the store ends": (
        replace(leased(stored_lsn=Lsn(0x50)), timelines=TWO), (Follow(TWO, Lsn(0x50), elsewhere(0x50, stored=0x50)),),
    ),
    "it took over before: the store tells whether anything is lost, and the slot may stand there at most": (
        BEFORE, (TAKEN_BEFORE,),
    ),
    "it took over before, and the slot gave more than both have": (
        replace(BEFORE, slot=replace(SLOT, confirmed_flush_lsn=Lsn(0x30))),
        (TAKEN_BEFORE, lost("Slot s was moved to 0/30 by another program; stored is 0/20.", 0x20)),
    ),
    "it took over before, and its log is shorter than the store, not than both": (
        replace(BEFORE, flushed=Lsn(0x28)), (TAKEN_BEFORE,),
    ),
    "it took over without the slot": (
        replace(FACTS, timelines=TWO, slot=None), (TAKEN, lost("There is no slot s any more.")),
    ),
    "no history is known yet": (leased(timelines=None), (Follow(ONE, None, elsewhere(None, None, ONE)),)),
}  # fmt: skip


@pytest.mark.parametrize("case", DECISIONS)
def test_where_a_capture_stands_says_what_is_to_be_done(case: str) -> None:
    facts, steps = DECISIONS[case]
    assert deciding.decide(facts, ACTIONS) == steps


def test_an_earlier_server_is_not_followed_if_some_changes_are_not_taken() -> None:
    assert deciding.decide(BEFORE, ("insert", "truncate")) == (elsewhere(0x20, came=OTHER),)
    # the later changes are not stored
    assert deciding.decide(replace(FACTS, timelines=TWO), ("insert",)) == (TAKEN,)


@pytest.mark.parametrize("facts", [FACTS, leased(source_generation=None, stored_lsn=None)])
def test_a_source_that_does_not_say_which_way_its_log_came_is_refused(facts: Facts) -> None:
    with pytest.raises(TimelinesUnknown):
        deciding.decide(replace(facts, timelines=UNKNOWN), ACTIONS)


ID = SourceColumn("id", 23, -1, "integer", not_null=True, unpublished=False)
COLUMNS = (ID, replace(ID, name="name", type_oid=25, type_name="text", not_null=False))
T, U = CapturedTable("t"), CapturedTable("u", mask=("name",))


def found(name: str, oid: int, **other: Any) -> SourceTable:  # noqa: ANN401 - passed on
    leaves = tuple(found(f"{name}_{leaf}", leaf) for leaf in other.pop("leaves", ()))
    return SourceTable(
        oid, "public", name, "r", "p", "d", "owner", False, False, COLUMNS, ("id",), (), (), leaves=leaves, **other
    )  # fmt: skip


THERE = {("public", "t"): found("t", 10, leaves=(11, 12)), ("public", "u"): found("u", 20)}
BAD, WORSE = "it is a view", "it has no key"
SERVER = "wal_level is replica"


def tables(
    problems: Mapping[str, Collection[str]] | None = None,
    server: Collection[str] = (),
    there: Mapping[tuple[str, str], SourceTable] = THERE,
    declared: tuple[CapturedTable, ...] = (T, U),
) -> Tables:
    said = {f"public.{name}": [*each] for name, each in (problems or {}).items()}
    return Tables(Capture("c", str, declared), "s", Readiness([*server], said, there, frozenset({"known"}), "0/60"))


ADMITTED: Mapping[str, tuple[Tables, Collection[str], Mapping[str, str]]] = {
    "all are well": (tables(), "tu", {}),
    "one cannot be captured": (tables({"t": [BAD]}), "u", {"public.t": BAD}),
    "one has several faults": (tables({"u": [BAD, WORSE]}), "t", {"public.u": f"{BAD}; {WORSE}"}),
    "one is locked": (tables({"t": [LOCKED]}), "u", {"public.t": LOCKED}),
    "all are locked: whoever publishes waits": (tables({"t": [LOCKED], "u": [LOCKED]}), "tu", {}),
    "one is bad, the other is locked": (tables({"t": [BAD], "u": [LOCKED]}), "u", {"public.t": BAD}),
    "none can be captured": (tables({"t": [BAD, WORSE], "u": [BAD]}), "", {"public.t": f"{BAD}; {WORSE}", "public.u": BAD}),
    "one is not there": (tables({"u": [BAD]}, there={("public", "t"): THERE["public", "t"]}), "t", {"public.u": BAD}),
}  # fmt: skip


@pytest.mark.parametrize("case", ADMITTED)
def test_tables_that_cannot_be_captured_are_registered_as_stopped(case: str) -> None:
    seen, captured, stopped = ADMITTED[case]
    admitted = deciding.admit(seen)
    assert [each.table.table for each in admitted.tables] == [*captured]
    assert not captured or admitted.published.tables == tuple(each.table for each in admitted.tables)
    assert {f"{r.schema}.{r.table}": r.stopped for r in admitted.registrations if r.stopped} == stopped
    assert admitted.stopped == stopped
    assert [r.table for r in admitted.registrations] == ["t", "u"]
    assert (admitted.slot, admitted.read_lsn, admitted.probed) == ("s", Lsn(0x60), frozenset({"known"}))


def test_a_captured_table_has_its_key_columns_and_its_partitions() -> None:
    (t, u), (first, second) = deciding.admit(tables()).tables, deciding.admit(tables()).registrations
    assert (t.table.key, t.oids, u.oids) == (("id",), (10, 11, 12), (20,))
    assert [(c.name, c.key) for c in t.schema.columns] == [("id", True), ("name", False)]
    assert (first.key_columns, first.decider, first.fingerprint) == (("id",), "table:public.t", t.fingerprint)
    assert second.fingerprint == u.fingerprint


REFUSED: Mapping[str, tuple[Tables, list[str]]] = {
    "the server": (tables(server=[SERVER]), [SERVER]),
    "the server and a table": (tables({"t": [BAD]}, [SERVER]), [SERVER, f"table public.t: {BAD}"]),
    "the server, while all are locked": (tables({"t": [LOCKED], "u": [LOCKED]}, [SERVER]), [SERVER]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_the_server_is_not_ready_all_that_the_source_lacks_is_said(case: str) -> None:
    seen, problems = REFUSED[case]
    with pytest.raises(NotReady) as refused:
        deciding.admit(seen)
    assert refused.value.problems == problems


def test_a_table_s_fingerprint_is_which_one_it_is_and_what_of_it() -> None:
    def prints(*declared: CapturedTable, oid: int = 10, leaves: tuple[int, ...] = (), **other: Any) -> str:  # noqa: ANN401
        there = {("public", "t"): found("t", oid, leaves=leaves)}
        seen = tables(there=there, declared=declared)
        admitted = deciding.admit(replace(seen, declared=replace(seen.declared, **other)))
        return admitted.tables[0].fingerprint

    hidden = CapturedTable("t", hash=("name",), hash_key=lambda: "a" * 16)
    assert prints(T, leaves=(11,)) == prints(T, keep_days=1.0) == prints(replace(T, decider="x")) == prints(T)
    different = [
        prints(T), prints(T, oid=11), prints(replace(T, where="id > 1")), prints(replace(T, columns=("id",))),
        prints(T, actions=("insert",)), prints(replace(T, mask=("name",))), prints(hidden),
        prints(replace(hidden, hash_key=lambda: "b" * 16)),
    ]  # fmt: skip
    assert len({*different}) == len(different)
    with pytest.raises(InvalidCapture, match="hash_key returns 5 bytes"):
        prints(replace(hidden, hash_key=lambda: "short"))


def registered(name: str, **other: Any) -> RegisteredTable:  # noqa: ANN401 - passed on
    known: dict[str, Any] = {"published_xid": 5, "stopped_reason": None, **other}
    return RegisteredTable(
        "public", name, f"table:public.{name}", ["id"], "f", known["published_xid"], 0, None, 0, False, 3, NOW, [],
        known["stopped_reason"], None, None, None,
    )  # fmt: skip


ALL, NEW = registered("u"), registered("t", published_xid=None)
AT = Lsn(0x40)
NOTHING_DUE = Publish(frozenset(), AT)
T_DUE = Publish(frozenset({"public.t"}), AT)
PUBLISHED: Mapping[str, tuple[Tables, tuple[RegisteredTable, ...], bool, tuple[Step, ...]]] = {
    "all is as before": (tables(), (registered("t"), ALL), False, (NOTHING_DUE,)),
    "it was declared otherwise": (tables(), (registered("t"), ALL), True, (Skip(AT), NOTHING_DUE)),
    "a table is new": (tables(), (NEW, ALL), True, (Skip(AT), T_DUE)),
    "a table is read anew, or a run was killed before it was published": (
        tables(), (NEW, ALL), False, (Skip(AT), T_DUE),
    ),
    "a table is stopped": (
        tables({"t": [BAD]}), (registered("t", published_xid=None, stopped_reason=BAD), ALL), False,
        (Skip(AT), NOTHING_DUE),
    ),
    "one is stopped, one is new": (
        tables({"u": [BAD]}), (NEW, registered("u", published_xid=None, stopped_reason=BAD)), True, (Skip(AT), T_DUE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED)
def test_what_is_registered_says_what_is_published(case: str) -> None:
    seen, known, changed, steps = PUBLISHED[case]
    assert deciding.decide_tables(deciding.admit(seen), known, AT, changed=changed) == steps


def test_a_table_that_waits_is_left_out_with_the_reason() -> None:
    waiting = deciding.admit(tables()).without({"public.t"}, deciding.UNPUBLISHED)
    assert [each.table.table for each in waiting.tables] == ["u"]
    assert waiting.stopped == {"public.t": deciding.UNPUBLISHED}
