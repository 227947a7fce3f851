"""The effect of a changed declaration on the serving rows: exactly the rows that differ, despite kills."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.drain import as_of
from millrace.drain import diff as diffing
from millrace.drain.as_of import KEEP, build_as_of
from millrace.drain.diff import diff_with_serving
from millrace.drain.rebuild import Rebuild
from millrace.errors import BelongsToReadModel, MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import count, field, last, sum_
from millrace.read_models.stored import differences
from millrace.read_models.stored.differences import Diff, Found, NothingToCompare, compare, diffs, take
from millrace.read_models.stored.past import all_as_of, at_mark, record_wanted, remove_expired, renamed
from millrace.read_models.stored.versions import ensure_version, with_upcasts
from tests.support import command_line
from tests.support.building import read_models as models
from tests.support.building.drains import Counted, Crossing, all_events, busiest, drain, fill, machines, no_spark, thing
from tests.support.building.lab import Lab
from tests.support.building.model_versions import Wider, built, relations
from tests.support.building.oracle import expected_rows
from tests.support.factories import Killed, at_once, rows
from tests.support.logins import logins
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["built"]

ALL = (Crossing, machines, cast("ReadModel", models.uses))


def found(diff: Diff) -> Found:
    assert diff.outcome is not None
    return diff.outcome


def test_a_diff_with_itself_is_empty_while_events_come(lab: Lab, tmp_path: Path) -> None:
    lab.fill(60)
    for model in ALL:
        lab.drain(model)
    before = relations(lab.connection)
    served = {model.name: lab.rows_of(model) for model in ALL}
    busy = busiest(lab)
    # all of them lag from now on
    lab.fill(30, seed=2)
    for partition in range(16):
        archive_partition(lab.dsn, tmp_path, partition, max_events=3, min_events=1, tail=True)
        position = lab.rows("select min(position) from event_store.checkpoints where partition = %s", partition)[0][0]
        ArchiveStore(lab.connection).raise_low_water_mark(partition, position)
        ArchiveStore(lab.connection).purge_events(partition)
    # a sample of a model that adds up rows over log partitions
    for model, sample in (*((model, None) for model in ALL), (Crossing, busy)):
        diff = diff_with_serving(lab.dsn, model, lab.session, partition=sample, archive=tmp_path)
        assert not found(diff).differs, found(diff)
        assert found(diff).rows_before == found(diff).rows_after > 0
        assert sample is not None or found(diff).rows_before == len(served[model.name])
        assert lab.rows(f"select * from read_models.{diff.name}") == []
    made = {re.sub("[0-9]+", "N", name) for name in relations(lab.connection) - before}
    assert made == {f"{model.name}_diff_N" for model in ALL}
    lab.execute("update read_models.diffs set expires_at = now()")
    assert len(remove_expired(lab.connection)) == len(ALL) + 1
    assert relations(lab.connection) == before
    assert lab.rows("select view from event_store.views order by 1") == sorted((m.view,) for m in ALL)


def summed(
    counted: list[str] | None = None, taken: tuple[str, ...] | None = None, deletes: tuple[str, ...] = ()
) -> ReadModel:
    columns = {"events": count(events=counted), "latest": last("data.text", events=counted)}
    return replace(Counted, columns=columns, events=taken, deletes=deletes)


def test_what_was_changed_is_found_and_nothing_else(lab: Lab) -> None:
    lab.fill(60)
    append_events(lab, [thing("bad", amount="no number")])
    # the serving declaration takes no later event: it stands before events that the other one takes
    serving = summed(taken=("made", "used"))
    lab.drain(serving)
    mark = lab.mark_log("before")
    build_as_of(lab.dsn, serving, lab.session, mark)
    append_events(lab, [BatchEvent("thing", "only broken", "broken"), BatchEvent("thing", "thing-1", "broken")])
    after_all = lab.mark_log("after")
    changed = summed(["made"], deletes=("broken",))
    two = dict(changed.columns)
    changed.columns["amounts"] = sum_("data.amount", type="decimal(18,2)")

    diff = diff_with_serving(lab.dsn, changed, lab.session)
    before = {key: values for key, *values in expected_rows(serving, all_events(lab))}
    good = [event for event in all_events(lab) if event.decider_id != "bad"]
    after = {key: values[:2] for key, *values in expected_rows(replace(changed, columns=two), good)}
    counted = {key for key in before.keys() & after.keys() if before[key][0] != after[key][0]}
    last_ones = {key for key in before.keys() & after.keys() if before[key][1] != after[key][1]}
    assert found(diff) == Found(
        rows_before=len(before), rows_after=len(after), same_key=True, gone=len(before.keys() - after.keys()),
        new=len(after.keys() - before.keys()), changed=len(counted | last_ones),
        columns={name: len(keys) for name, keys in (("events", counted), ("latest", last_ones)) if keys},
        added=["amounts"], failed_streams=1,
    )  # fmt: skip
    # nulls are compared too
    assert any(before[key][1] is not None and after[key][1] is None for key in last_ones)
    assert "thing-1" in before.keys() - after.keys()
    kept = lab.rows(f"select * from read_models.{diff.name}")
    assert {key for key, how, *_ in kept if how == "gone"} == before.keys() - after.keys()
    for key, how, columns, old, new in kept:
        assert how != "changed" or columns == [n for n, k in (("events", counted), ("latest", last_ones)) if key in k]
        assert (old and [old["events"], old["latest"]]) == before.get(key)
        assert (new and [new["events"], new["latest"]]) == after.get(key)
    shown = differences.examples(lab.connection, diff)
    assert len(shown) == len(kept) < 20
    assert {(one.before is None, one.after is None) for one in shown if one.change == "gone"} == {(False, True)}

    # as of the earlier moment, later events count for neither
    past = diff_with_serving(lab.dsn, summed(taken=("made", "used")), lab.session, mark=mark)
    assert (found(past).rows_before, found(past).differs, past.marks) == (len(before), False, mark.marks)
    other = replace(Counted, keys={"owner": field("data.owner")})
    assert "The key is another one" in str(found(diff_with_serving(lab.dsn, other, lab.session)))
    with pytest.raises(NothingToCompare, match="not built as of moment"):
        diff_with_serving(lab.dsn, changed, no_spark, mark=after_all)
    with pytest.raises(NothingToCompare, match="No version of read model machines serves"):
        diff_with_serving(lab.dsn, machines, no_spark)


# each point between two transactions, and after the last one
STEPS: list[tuple[object, str, bool]] = [
    (diffing, "take", False), (as_of, "ensure_version", False), (Rebuild, "_build", False), (diffing, "compare", False),
    (diffing, "compare", True),
]  # fmt: skip


def test_killed_anywhere_the_next_call_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill(30).drain(Counted)
    served, before = lab.rows_of(Counted), relations(lab.connection)
    for owner, name, late in STEPS:
        work: Callable[..., Any] = getattr(owner, name)

        def dying(*args: object, work: Callable[..., Any] = work, late: bool = late, **kwargs: object) -> None:
            if late:
                work(*args, **kwargs)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, dying)
            with pytest.raises(Killed):
                diff_with_serving(lab.dsn, Counted, lab.session)
        # the leases of a killed process expire
        lab.execute("update event_store.checkpoints set leased_until = '-infinity' where leased_until > now()")
    # the first copy is the one that was compared
    (diff,) = diffs(lab.connection, "counted")
    assert (found(diff).differs, found(diff).rows_before) == (False, len(served))
    assert relations(lab.connection) - before == {diff.name}
    assert lab.rows("select view from event_store.views") == [("counted",)]
    # the next diff compares with the rows that serve now
    declared = with_upcasts(lab.connection, Counted)
    assert take(lab.connection, declared, None).number > diff.number


def test_of_several_calls_all_find_the_same_and_what_died_is_removed(
    things: PlatformStore, spark: "SparkSession"
) -> None:
    """A login with only the operator role does all of it."""
    with logins(things.connection) as login:
        dsn = login("event_store_owner").info.dsn
        fill(things, 30)
        drain(dsn, spark, Counted)
        before = relations(things.connection)
        calls = [lambda: diff_with_serving(dsn, summed(), lambda: spark) for _ in range(3)]
        outcomes: list[Diff] = [call.result() for call in at_once(calls)]
    assert {(diff.found or {})["added"][0] for diff in outcomes} == {"latest"}
    assert rows(things.connection, "select count(*) from event_store.views") == [(1,)]
    take(things.connection, with_upcasts(things.connection, Counted), None)
    things.connection.execute("update read_models.diffs set expires_at = now()")
    assert len(remove_expired(things.connection)) == 1 + len({diff.number for diff in outcomes})
    assert relations(things.connection) == before


def test_builds_that_were_killed_are_named_so_and_one_command_removes_them(things: PlatformStore, dsn: str) -> None:
    fill(things, 5)
    connection, declared = things.connection, with_upcasts(things.connection, Counted)
    ensure_version(connection, declared)
    before, mark = relations(connection), things.mark_log("then")
    sides = [renamed(declared, take(connection, declared, None).name), at_mark(declared, mark)]
    record_wanted(connection, declared, mark, KEEP)
    for side in sides:
        ensure_version(connection, side)
        things.claim_batch(side.view, "killed", 1, 60)
        with pytest.raises(MillraceError, match="is being built"):
            command_line.millrace("view", "remove", side.view, dsn=dsn)
    connection.execute("update event_store.checkpoints set leased_until = '-infinity' where leased_until > now()")
    unfinished = {each.subject: each for each in things.standing() if each.kind == "unfinished"}
    assert unfinished.keys() == {side.view for side in sides}
    assert {each.kind for each in things.standing()} == {"unfinished"}
    for side in sides:
        assert (
            "killed holds 1 log partitions. It goes by itself within two hours after 2" in unfinished[side.view].cause
        )
        command = f"millrace view remove {side.view}"
        assert unfinished[side.view].remedy.endswith(f"Or: {command}")
        with pytest.raises(BelongsToReadModel, match=command):
            things.unregister_view(side.view)
        assert "is removed with its rows" in command_line.millrace(*command.split()[1:], dsn=dsn)
    assert relations(connection) == before
    assert (things.standing(), all_as_of(connection, "counted"), diffs(connection, "counted")) == ([], [], [])


def test_of_a_diff_that_was_removed_while_it_was_built_nothing_stays(things: PlatformStore, built: ReadModel) -> None:
    before = relations(things.connection)
    diff = take(things.connection, declared := with_upcasts(things.connection, Wider), None)
    side = ensure_version(things.connection, renamed(declared, diff.name))
    things.connection.execute("delete from read_models.diffs")
    compare(things.connection, diff, side, [], 0, KEEP)
    things.connection.execute(f"drop table read_models.{diff.name}_before".encode())
    assert relations(things.connection) == before
    assert rows(things.connection, "select view from event_store.views") == [(built.view,)]
