"""Streams that cannot be built: they wait alone, in order, and all others continue; in drains and in rebuilds."""

import random
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString

import pytest
from psycopg import Connection
from pyspark.errors import PySparkException

from millrace import fold
from millrace.drain import failing_streams, limits
from millrace.drain.commit import Commit, Work
from millrace.drain.failing_streams import Failure, Part
from millrace.drain.misread import MisreadEvent
from millrace.drain.parts import LeasedParts
from millrace.drain.report import DrainReport, PartitionsFailed
from millrace.drain.staged import StagedBuilds
from millrace.event_store.platform import PlatformStore
from millrace.read_models import recompute
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.merge import StagedRows
from millrace.rows import FoldEvent, State
from tests.support.building.drains import Counted, staged, thing
from tests.support.building.lab import Lab
from tests.support.building.poison import TOTALS, WORTHS, assert_holds_all_but, correct, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition, rows
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


OF_JAVA = ("\tat ", "java.", "org.apache.spark", "JVM stacktrace", "Traceback")


def test_failing_streams_wait_and_are_dead_letters_at_last(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failing_streams, "ALL_FAIL", 2)
    bad, other = (ids_of_one_partition(lab.connection, 1, partition)[0] for partition in (2, 9))
    lab.fill(60)
    append_events(lab, [thing(bad, worth=1), poison(bad), thing(bad, worth=2), poison(other), thing("good", worth=2)])
    report = lab.at(0).drain(WORTHS)
    assert (report.batches, report.events, report.failed_streams, report.failed) == (1, 65, 2, {})
    first, failing, *_ = offsets_of(lab, bad)
    assert_holds_all_but(lab, [*offsets_of(lab, bad)[1:], *offsets_of(lab, other)], WORTHS)
    reasons = dict(lab.rows("select decider_id, (last_offset, last_error) from event_store.stream_locks"))
    assert first <= int(reasons[bad][0]) < failing
    assert all("'a lot'" in error and "\n" not in error for _, error in reasons.values())
    # neither in the reasons nor in the drain's log
    assert not [word for word in OF_JAVA if word in f"{reasons}{caplog.text}"]

    # later events of the stream wait behind the failed one
    append_events(lab, [thing(bad, worth=3), thing("good", worth=3)])
    lab.at(1).drain(WORTHS)
    assert_holds_all_but(lab, [*offsets_of(lab, bad)[1:], *offsets_of(lab, other)], WORTHS)
    assert dict(locks(lab)) == {bad: 1, other: 1}
    # all retried streams fail again: the streams are to blame
    assert lab.at(5).drain(WORTHS).failed_streams == 2
    assert dict(locks(lab)) == {bad: 2, other: 2}

    # as after two more retries
    lab.execute("update event_store.stream_locks set attempts = 4")
    assert lab.dead_letters(WORTHS.view) == []
    lab.at(20).drain(WORTHS)
    letters = {letter.decider_id: letter for letter in lab.dead_letters(WORTHS.view)}
    assert letters.keys() == {bad, other}
    assert (letters[bad].attempts, letters[bad].waiting, letters[bad].offset) == (5, 3, failing)
    assert "'a lot'" in letters[bad].last_error
    assert lab.at(3000).drain(WORTHS) == DrainReport()
    lab.discard_dead_letter(WORTHS.view, DECIDER, bad, "nobody knows what it is worth")
    correct(lab.connection, other, '{"worth": 7}')
    assert lab.retry_dead_letters(WORTHS.view, DECIDER, other) == 1
    retried = lab.at(3001).drain(WORTHS)
    assert (retried.batches, retried.failed_streams, locks(lab)) == (1, 0, [])
    assert_holds_all_but(lab, [failing], WORTHS)

    # as with a wrong declaration: if all new events fail, no stream is blamed
    append_events(lab, [poison(f"new-{n}") for n in range(3)])
    with pytest.raises(PartitionsFailed, match="'a lot'"):
        lab.at(3002).drain(WORTHS)
    assert locks(lab) == []
    assert sum(lag.behind for lag in lab.view_lag(WORTHS.view)) == 3


def test_a_rebuild_frees_streams_that_do_not_fail(lab: Lab) -> None:
    partition = 3
    freed, failing, parked, good = ids_of_one_partition(lab.connection, 4, partition)
    append_events(lab, [poison(freed), thing(failing, worth=1), poison(parked), thing(parked, worth=2), thing(good)])

    def park_what_fails() -> None:
        """Park each failing stream, as after its last attempt."""
        lab.execute(
            "update event_store.stream_locks set attempts = 5, parked_at = updated_at, locked_until = 'infinity'"
        )

    def rebuild(seconds: int) -> set[str]:
        return {failure.stream.decider_id for failure in lab.at(seconds).rebuild(WORTHS, partition).failures}

    lab.at(0).drain(WORTHS)
    park_what_fails()
    assert {letter.decider_id for letter in lab.dead_letters()} == {freed, parked}
    correct(lab.connection, freed, '{"worth": 3}')
    correct(lab.connection, failing, '{"worth": "a lot"}')
    assert rebuild(6) == {failing, parked}
    assert dict(locks(lab)) == {failing: 1, parked: 6}
    assert {letter.decider_id for letter in lab.dead_letters()} == {parked}
    assert_holds_all_but(lab, [*offsets_of(lab, failing), *offsets_of(lab, parked)], WORTHS)

    correct(lab.connection, failing, '{"worth": 1}')
    given_up = offsets_of(lab, parked)[:1]
    lab.discard_dead_letter(WORTHS.view, DECIDER, parked, "a lot")
    lab.at(12).drain(WORTHS)
    assert locks(lab) == []
    assert_holds_all_but(lab, given_up, WORTHS)
    # increments with discards equal a rebuild with the same discards
    assert rebuild(13) == {parked}
    park_what_fails()
    assert [letter.offset for letter in lab.dead_letters()] == given_up
    lab.discard_dead_letter(WORTHS.view, DECIDER, parked, "a lot")
    lab.at(20).drain(WORTHS)
    assert_holds_all_but(lab, given_up, WORTHS)


@fold(view="crashes", deciders=[DECIDER], key="thing_id", columns={"n": "int"})
def crashes(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing; stands for a library that a value brings down."""
    import os

    if event.data.get("crash"):
        os._exit(3)
    return {"n": (state or {"n": 0})["n"] + 1}


@recompute(view="moments", deciders=[DECIDER], key=["thing_id"], columns={"n": "bigint", "first_at": "timestamp"})
def moments(events: "DataFrame") -> "DataFrame":
    """One row per thing, with a time that Postgres may not hold."""
    from pyspark.sql import functions as f

    micros = f.get_json_object("data", "$.micros").cast("bigint")
    first_at = f.min(f.timestamp_micros(micros)).alias("first_at")
    return events.groupBy("decider_id").agg(f.count("*").alias("n"), first_at)


@pytest.mark.parametrize("model", [crashes, moments], ids=["fold", "recompute"])
def test_an_event_that_nobody_takes_fails_its_stream_alone(lab: Lab, model: ReadModel) -> None:
    append_events(lab, [thing("a", micros=0), thing("bad", crash=True, micros=-(2**62)), thing("b", micros=1)])
    report = lab.drain(model)
    assert (report.failed_streams, report.failed) == (1, {})
    assert lab.rows(f"select thing_id from read_models.{model.name} order by 1") == [("a",), ("b",)]
    assert locks(lab) == [("bad", 1)]


def test_leases_are_kept_while_others_are_built(
    lab: Lab, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_events(lab, (thing(ids_of_one_partition(lab.connection, 1, partition)[0]) for partition in (2, 5, 9)))
    waited: list[int] = []
    leased: LiteralString = "select partition, leased_until from event_store.checkpoints where partition = any (%s)"
    with lab.consumer(Counted, lease_s=3) as consumer:
        build, stage = StagedBuilds.build, StagedBuilds.stage

        def one_by_one(builds: StagedBuilds, store: PlatformStore, work: Work) -> Commit:
            if len(work.leases) > 1:
                waited.extend(lease.partition for lease in work.leases)
                raise PySparkException("only all together fail")
            return build(builds, store, work)

        def slow(
            builds: StagedBuilds, work: Work, batch: int, without: tuple[Failure, ...] = ()
        ) -> tuple[list[StagedRows], list[MisreadEvent]]:
            waited.remove(work.leases[0].partition)
            before: dict[int, datetime] = dict(rows(observer, leased, waited))
            wait_until(
                lambda: all(until > before[p] for p, until in rows(observer, leased, waited)),
                "the leases of those that wait are extended",
            )
            return stage(builds, work, batch, without)

        monkeypatch.setattr(StagedBuilds, "build", one_by_one)
        monkeypatch.setattr(StagedBuilds, "stage", slow)
        report = staged(consumer).drain(budget_s=patience(), idle_s=0)
    assert (waited, report.failed, report.events, report.batches) == ([], {}, 3, 3)
    lab.is_clean(Counted)


def refused(decider_id: str) -> BatchEvent:
    """Make an event with a key too long for an index: Postgres refuses the row, and no single event is to blame."""
    return thing(decider_id, owner=random.Random(decider_id).randbytes(6000).hex(), units=1)


def test_misread_and_refused_streams_wait_from_one_batch_on(lab: Lab) -> None:
    odd = [thing("odd", owner="q", units=units) for units in (1, "a lot", 2)]
    append_events(lab, [thing("good", owner="p", units=1), refused("bad"), *odd])
    report = lab.at(0).drain(TOTALS)
    assert (report.batches, report.failed_streams, report.failed) == (1, 2, {})
    assert locks(lab) == [("bad", 1), ("odd", 1)]
    assert sorted(lab.rows_of(TOTALS)) == [("p", 1), ("q", 1)]


def test_a_rebuild_names_more_streams_than_a_search(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 1)
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 3)
    good, *bad = ids_of_one_partition(lab.connection, 3, partition=3)
    append_events(lab, [thing(good, owner="p", units=1), *map(refused, bad)])
    lab.sequence_events()
    commit = lab.at(0).rebuild(TOTALS, 3)
    assert {failure.stream.decider_id for failure in commit.failures} == {*bad}
    assert dict(locks(lab)) == dict.fromkeys(bad, 1)
    assert lab.rows_of(TOTALS) == [("p", 1)]


def test_a_search_out_of_time_sets_aside_those_that_it_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searches: list[LeasedParts] = []
    offsets_of_part = LeasedParts.offsets

    def last_look(parts: LeasedParts, part: Part) -> Sequence[int]:
        """Answer, and exhaust the first search's time budget at its first failing event."""
        found = offsets_of_part(parts, part)
        if not searches:
            parts._until = 0.0
        searches.append(parts)
        return found

    monkeypatch.setattr(LeasedParts, "offsets", last_look)
    good, *bad = ids_of_one_partition(lab.connection, 3, partition=3)
    append_events(lab, [thing(good, owner="p", units=1), *map(refused, bad)])
    report = lab.at(0).drain(TOTALS)
    assert len({id(parts) for parts in searches}) == 2
    assert (report.batches, report.failed_streams) == (1, 2)
    assert dict(locks(lab)) == dict.fromkeys(bad, 1)
    assert lab.rows_of(TOTALS) == [("p", 1)]
    assert "The search for failing streams had not ended after 1800 s. The 1 that it named wait" in caplog.text
    assert lab.rows("select count(*) from read_models.amounts_staging") == [(0,)]


def test_a_search_that_named_nobody_fails_its_partition(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEARCH_BUILDS", 0)
    (bad,) = ids_of_one_partition(lab.connection, 1, partition=3)
    (good,) = ids_of_one_partition(lab.connection, 1, partition=4)
    append_events(lab, [refused(bad), thing(good, owner="p", units=1)])
    with pytest.raises(PartitionsFailed, match="1 log partition") as failed:
        lab.at(0).drain(TOTALS)
    said = "The search for failing streams had not ended after 0 s, and named none: "
    assert said in str(failed.value) + (failed.value.detail or "")
    assert locks(lab) == []
    # the other log partitions were built without the failing one
    assert lab.rows_of(TOTALS) == [("p", 1)]
    with lab.at(100).consumer(TOTALS, "rebuilder") as consumer, pytest.raises(PartitionsFailed) as failed:
        consumer.rebuild(3)
    assert said in (failed.value.detail or "")


@pytest.mark.parametrize("model", [crashes, moments], ids=["fold", "recompute"])
def test_a_search_that_gives_up_moves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch, model: ReadModel) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 1)
    append_events(lab, [thing("bad", micros=0), thing("bad", crash=True, micros=-(2**62))])
    with lab.at(0).consumer(model, "first") as consumer:
        work = Work(model, tuple(consumer._store.claim_batch(model.view, "first", 2)))
        assert not consumer._rounds.builds.build(consumer._store, work).whole
    counted = f"select thing_id, n from read_models.{model.name}"
    assert lab.rows(counted) == [("bad", 1)]
    correct(lab.connection, "bad", "{}")
    with lab.at(100).consumer(model) as consumer:
        report = staged(consumer).drain(budget_s=patience(), idle_s=0)
    # both positions: the checkpoint was at the beginning
    assert (report.events, report.failed_streams, locks(lab)) == (2, 0, [])
    assert lab.rows(counted) == [("bad", 2)]
