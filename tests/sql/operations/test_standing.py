"""standing: each kind of problem in a store, with its start and its cause; by a clock that tests move."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from millrace.capture.store import CaptureStore
from millrace.errors import Malformed
from millrace.event_store import Problem
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from tests.support import factories
from tests.support.capturing.captures import BEGAN, Source, faulty, inserted, table, updated

Key = tuple[str, str]


def found(store: PlatformStore, *, after_s: float = 0) -> dict[Key, Problem]:
    """Return the problems found `after_s` seconds from now."""
    factories.set_clock(store.connection, (datetime.now(UTC) + timedelta(seconds=after_s)).isoformat())
    problems = {(each.kind, each.subject): each for each in store.standing()}
    factories.set_clock(store.connection, "")
    return problems


@pytest.fixture
def mails(orders: PlatformStore) -> PlatformStore:
    """Return the store; its view `mails` parks a stream at its first failure."""
    orders.register_view("mails", "-infinity", max_attempts=1)
    return orders


def park(store: PlatformStore, *streams: str) -> None:
    factories.append_to(store, *streams)
    factories.pump(store, "mails")
    for number, event in enumerate(store.stream_events("mails", len(streams))):
        store.fail_event("mails", event.decider_id, event.offset, f"reason {number}")


def test_a_view_is_late_when_an_event_waits_for_longer_than_its_objective(mails: PlatformStore) -> None:
    mails.register_view("off", "-infinity")
    mails.enable_view("off", enabled=False)
    factories.append_to(mails, "o-1", "o-2")
    factories.pump(mails, "mails")
    assert found(mails, after_s=290) == {}
    late = found(mails, after_s=310)["late", "mails"]
    assert (late.about, late.severity, late.what) == ("view", "ticket", "mails is late")
    assert late.since == factories.value(mails.connection, "select min(created_at) from event_store.events")
    assert late.cause == (
        "2 events wait, the oldest for 5 minutes; 300 s are allowed. No consumer lives of the view mails;"
        " 0 of its streams wait for a retry, 0 are dead letters."
    )
    mails.set_max_lag("mails", 3600)
    assert found(mails, after_s=310) == {}
    mails.set_max_lag("mails", 0)
    assert set(found(mails, after_s=1)) == {("late", "mails")}
    for seconds in (-1, 31_536_001):
        factories.refusal(Malformed, partial(mails.set_max_lag, "mails", seconds))


def test_a_late_view_names_the_last_error_of_a_stream_that_waits(mails: PlatformStore) -> None:
    mails.register_view("mails", max_attempts=5)
    park(mails, "o-1", "o-2")
    assert found(mails, after_s=310)["late", "mails"].cause.endswith(
        " 2 of its streams wait for a retry, 0 are dead letters. order o-2 failed last with: reason 1"
    )


def test_a_late_read_model_is_named_but_no_version_that_is_built(mails: PlatformStore) -> None:
    mails.unregister_view("mails")
    mails.register_view("m_v2", "-infinity", mode="bulk")
    factories.give_to_read_model(mails.connection, "m_v2")
    factories.append_to(mails, "o-1")
    mails.sequence_events()
    assert found(mails, after_s=310)["late", "m"].about == "read_model"
    mails.connection.execute("update read_models.declarations set serves = false")
    # no reader uses the version: it counts as given up, unless its drain tries
    given_up = found(mails, after_s=310)["given_up", "m_v2"]
    made = factories.value(mails.connection, "select declared_at + interval '1 day' from read_models.declarations")
    assert (given_up.about, given_up.severity) == ("view", "note")
    assert given_up.cause.endswith(f" It is removed after {made.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")
    # a model's drain is that of its first version's view; a shared drain is that of all models
    mails.connection.execute("update read_models.declarations set version = 2")
    for drain in ("", "m"):
        mails.end_drain(drain, "run 1", f"{drain or 'all'}: no such field")
        failing = found(mails, after_s=310)["build_fails", "m_v2"]
        assert (failing.about, failing.severity) == ("view", "ticket")
        assert failing.cause.endswith(f" that failed: 1, the last with: {drain or 'all'}: no such field")
    mails.connection.execute("update read_models.declarations set serves = true")
    assert "the last with: m: no such field" in found(mails, after_s=310)["late", "m"].cause
    mails.end_drain("m", "run 1")
    assert "the last with: all: no such field" in found(mails, after_s=310)["late", "m"].cause
    mails.end_drain("", "run 1")
    assert "the last with" not in found(mails, after_s=310)["late", "m"].cause
    mails.connection.execute("update read_models.declarations set serves = false")
    mails.attach_consumer("m_v2", "builder", 3600)
    assert found(mails, after_s=310) == {}
    # the model that a diff, or a moment of the past, is built as
    mails.connection.execute("update read_models.declarations set serves = true, model = 'm_diff_1'")
    for values, others in (
        ("(model, version, fingerprint, marks, taken_at, waiting_streams, expires_at)"
         " values ('m', 1, '', '{}', now(), 0, now())", "diffs"),
        ("(name, model, mark_id, marked_at, fingerprint, expires_at) values ('m_diff_1', 'm', 1, now(), '', now())", "as_of"),
    ):  # fmt: skip
        assert set(found(mails, after_s=310)) == {("late", "m_diff_1")}
        mails.connection.execute(f"insert into read_models.{others} {values}".encode())
        assert found(mails, after_s=310) == {}
        mails.connection.execute(f"delete from read_models.{others}".encode())


def test_the_first_dead_letter_is_the_cause_and_alone_makes_no_view_late(mails: PlatformStore) -> None:
    park(mails, "o-1", "o-2")
    (problem,) = found(mails, after_s=3600).values()
    assert problem.kind == "dead_letters"
    assert problem.cause == "2 streams wait for an operator. order o-1 was given up after attempt 1: reason 0"
    assert problem.remedy.endswith("then: millrace dead retry mails")
    assert problem.since == factories.value(mails.connection, "select min(parked_at) from event_store.stream_locks")
    # another stream has an event for the consumer
    factories.append_to(mails, "o-3")
    factories.pump(mails, "mails")
    assert set(found(mails, after_s=3600)) == {("dead_letters", "mails"), ("late", "mails")}


def test_a_remedy_takes_the_name_of_a_view_as_one_word_of_a_shell(orders: PlatformStore) -> None:
    for name, word in (("$(rm -rf 'x')", """'$(rm -rf '"'"'x'"'"')'"""), ("a-b.c", "a-b.c"), ("a b", "'a b'")):
        assert factories.value(orders.connection, "select event_store_private.shell_word(%s)", name) == word


def test_leases_past_their_time_and_checkpoints_beyond_the_log_are_noted(orders: PlatformStore) -> None:
    orders.register_view("bulk", "-infinity", mode="bulk")
    factories.append_to(orders, "o-1")
    orders.claim_batch("bulk", "run 1", lease_s=60)
    assert found(orders, after_s=50) == {}
    lease = found(orders, after_s=70)["expired_lease", "bulk"]
    assert (lease.severity, lease.cause) == ("note", "run 1 holds 1 log partitions.")
    orders.release_owner("run 1")
    orders.connection.execute("update event_store.checkpoints set position = 7 where partition = 3")
    beyond = found(orders)["beyond_log", "bulk"]
    assert beyond.severity == "note"
    assert beyond.cause.startswith("It stands at position 7 of log partition 3, which ends at ")


def test_changes_that_are_no_events_or_are_missing_are_found(source: Source, store: PlatformStore) -> None:
    source.commit(inserted(1), faulty(1), updated(1, "a"))
    source.emit()
    problems = found(store)
    quarantine = problems["quarantine", "c"]
    assert quarantine.cause == "2 changes wait for an operator. table:public.t [1]: column v: not UTF-8"
    # the source's last commit was long ago
    assert problems["capture_idle", "c"].since is not None
    assert "It has stored nothing for" in problems["capture_idle", "c"].cause
    CaptureStore(store.connection).record_gap("c", None, None, "the slot is gone")
    problems = found(store)
    assert problems["gap", "c"].cause == "1 ranges of changes are missing: the slot is gone"
    assert (problems["gap", "c"].severity, problems["gap", "c"].about) == ("page", "capture")
    # while a gap is open, idleness is no finding
    assert ("capture_idle", "c") not in problems


def test_a_table_that_cannot_be_captured_is_found_until_it_can(source: Source, store: PlatformStore) -> None:
    assert datetime.now(UTC) > BEGAN
    stopped = replace(table(), stopped="it has no key")
    source.store.register_capture("c", "slot_c", "pub_c", [stopped])
    assert found(store)["stopped_table", "c"].cause == "public.t: it has no key"
    source.store.register_capture("c", "slot_c", "pub_c", [table()])
    assert ("stopped_table", "c") not in found(store)


def test_a_transaction_of_a_producer_past_its_deadline_is_found(orders: PlatformStore) -> None:
    producers = ProducerStore(orders.connection)
    epoch = producers.register_producer("p").epoch
    producers.begin_transaction("p", 0, epoch, 0, timeout_s=60)
    assert found(orders, after_s=170) == {}
    overdue = found(orders, after_s=190)["overdue", "p"]
    assert overdue.cause == "Partition 0: message 0, begun 3 minutes ago."


def test_a_log_that_nobody_sequences_or_somebody_holds_is_found(
    orders: PlatformStore, connect: factories.Connect
) -> None:
    holder, writer = connect(autocommit=False), connect(autocommit=False)
    factories.append_to(PlatformStore(writer), "o-1")
    factories.append_to(orders, "o-2")

    def seen(after_s: float) -> dict[Key, Problem]:
        factories.set_clock(orders.connection, (datetime.now(UTC) + timedelta(seconds=after_s)).isoformat())
        return {(each.kind, each.subject): each for each in orders.standing()}

    assert seen(60)["not_sequenced", "the log"].since is None
    factories.set_clock(orders.connection, "")
    orders.sequence_events()
    assert seen(60) == {}
    factories.set_clock(orders.connection, "")
    factories.append_to(orders, "o-3")
    assert "no sequencer has looked for them for 60 minutes" in seen(3601)["not_sequenced", "the log"].cause
    holder.execute("select event_store_platform.sequence_events()")
    pids = {name: f"process {each.info.backend_pid}" for name, each in (("holder", holder), ("writer", writer))}
    assert "holds the sequencer" in seen(60)["log_held", pids["holder"]].cause
    assert set(seen(60)) == {("log_held", pids["holder"])}
    assert "of login postgres" in seen(1000)["old_writer", pids["writer"]].cause
    holder.rollback()
    writer.execute("prepare transaction 'left behind'")
    assert ("old_writer", "the prepared transaction left behind") in seen(1000)
    writer.autocommit = True
    writer.execute("rollback prepared 'left behind'")


def test_the_worst_comes_first_and_it_is_cheap_for_forty_views(orders: PlatformStore) -> None:
    for number in range(40):
        orders.register_view(f"v{number:02}", "-infinity", mode="bulk", events=["paid"] if number % 2 else None)
    factories.append_to(orders, *(f"o-{number}" for number in range(300)))
    orders.sequence_events()
    factories.append_to(orders, "o-new")
    factories.set_clock(orders.connection, (datetime.now(UTC) + timedelta(hours=1)).isoformat())
    problems = orders.standing()
    assert [problems[0].severity, problems[-1].severity] == ["page", "ticket"]
    assert len(problems) == 21
    of_views, standing = "select * from event_store.view_info()", "select * from event_store_platform.standing()"
    for call in (of_views, standing):
        factories.rows(orders.connection, call)
    # reads the locks, leases and ends of each view, and the pages of view_info
    assert factories.buffers(orders.connection, standing) < 3 * factories.buffers(orders.connection, of_views)
