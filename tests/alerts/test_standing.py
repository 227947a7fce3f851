"""What the event store says is wrong: each kind with its first cause, by thresholds that the alert rules have, too."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import LiteralString

import pytest
import yaml

from millrace.resources.alerts import incidents, standing
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.standing import found_in_store
from millrace.resources.capture.store import CaptureStore, TableRegistration
from millrace.resources.event_store import EventStore
from millrace.resources.settings import PROJECT
from tests.support.capturing.captures import Source, faulty, inserted, source, updated
from tests.support.factories import Connect, append_to, give_to_read_model, pump

__all__ = ["source"]

LATER: LiteralString = "update event_store.sequencer set sequenced_at = now() - interval '1 hour'"


def found(store: EventStore, *known: tuple[str, str]) -> dict[tuple[str, str], Finding]:
    return {finding.key: finding for finding in found_in_store(store, set(known))}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything be late at once."""
    for name in ("LATE_S", "SEQUENCER_HELD_S", "OLD_WRITER_S"):
        monkeypatch.setattr(standing, name, -1)


@pytest.mark.usefixtures("quick")
def test_late_views_are_found_by_the_name_of_their_model_and_disabled_ones_are_not(mails: EventStore) -> None:
    mails.register_view("m_v2", "-infinity", mode="bulk")
    mails.register_view("off", "-infinity")
    mails.enable_view("off", enabled=False)
    give_to_read_model(mails.connection, "m_v2")
    append_to(mails, "o-1", "o-2")
    pump(mails, "mails")
    late = {subject: finding for (kind, subject), finding in found(mails).items() if kind == "late"}
    assert set(late) == {"mails", "m"}
    assert late["m"].page == "/assets/read_models/m?view=checks"
    assert "2 events wait" in late["m"].cause
    assert "No consumers of the view m_v2 live" in late["m"].cause
    assert "0 of its streams wait for a retry" in late["mails"].cause


@pytest.mark.usefixtures("quick")
def test_a_version_that_somebody_builds_is_not_late_and_one_that_nobody_builds_is_by_its_own_name(
    mails: EventStore,
) -> None:
    mails.register_view("m_v2", "-infinity", mode="bulk")
    give_to_read_model(mails.connection, "m_v2")
    mails.connection.execute("update read_models.declarations set serves = false")
    append_to(mails, "o-1")
    pump(mails, "mails")
    assert ("late", "m_v2") in found(mails)
    mails.attach_consumer("m_v2", "builder", 60)
    assert {subject for kind, subject in found(mails) if kind == "late"} == {"mails"}


def test_a_dead_letter_alone_makes_no_view_late(mails: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append_to(mails, "o-1")
    pump(mails, "mails")
    assert found(mails) == {}
    monkeypatch.setattr(standing, "LATE_S", 0)
    (event,) = mails.stream_events("mails", 1)
    mails.fail_event("mails", event.decider_id, event.offset, "no")
    assert set(found(mails)) == {("dead_letters", "mails")}
    # another stream waits for the consumer
    append_to(mails, "o-2")
    pump(mails, "mails")
    assert set(found(mails)) == {("dead_letters", "mails"), ("late", "mails")}


def test_the_first_dead_letter_is_the_cause(mails: EventStore) -> None:
    append_to(mails, "o-1", "o-2")
    pump(mails, "mails")
    for number, event in enumerate(mails.stream_events("mails", 2)):
        mails.fail_event("mails", event.decider_id, event.offset, f"reason {number}")
    finding = found(mails)["dead_letters", "mails"]
    assert finding.cause.endswith("was given up after attempt 1: reason 0")
    assert finding.page
    # of a known one it is not looked for
    assert found(mails, ("dead_letters", "mails"))["dead_letters", "mails"].cause == "2 streams wait for an operator."


def test_the_gap_the_quarantine_and_the_silence_of_a_capture_are_found(source: Source, store: EventStore) -> None:
    source.commit(inserted(1))
    assert (datetime.now(UTC) - (source.store.capture_info("c")[0].stored_at or datetime.now(UTC))).days > 0
    assert "It has stored nothing for" in found(store)["capture_idle", "c"].cause
    source.commit(faulty(1), updated(1, "a"))
    source.emit()
    finding = found(store)["quarantine", "c"]
    assert finding.cause == "table:public.t [1]: column v: not UTF-8"
    assert found(store, ("quarantine", "c"))["quarantine", "c"].cause == "2 changes wait for an operator."
    CaptureStore(store.connection).record_gap("c", None, None, "the slot is gone")
    both = found(store)
    assert both["gap", "c"].cause == "the slot is gone"
    # what it stored last was long ago; while a gap is open, that is no news
    assert ("capture_idle", "c") not in both


def test_a_table_that_cannot_be_captured_is_found_until_it_can(source: Source, store: EventStore) -> None:
    (table,) = source.store.captured_tables("c")
    stopped = TableRegistration(
        table.schema_name, table.table_name, table.decider, table.key_columns, table.fingerprint, "it has no key"
    )
    (info,) = source.store.capture_info("c")
    source.store.register_capture("c", info.slot, info.publication, [stopped])
    assert found(store)["stopped_table", "c"].cause == f"{table.name}: it has no key"
    assert found(store, ("stopped_table", "c"))["stopped_table", "c"].cause == "Of its tables, 1 cannot be captured."
    source.store.register_capture("c", info.slot, info.publication, [replace(stopped, stopped=None)])
    assert ("stopped_table", "c") not in found(store)


@pytest.mark.usefixtures("quick")
def test_a_log_that_nobody_sequences_and_transactions_that_hold_it_up_are_found_with_their_process(
    mails: EventStore, connect: Connect
) -> None:
    mails.connection.execute(LATER)
    assert "for 60 minutes" in found(mails)["not_sequenced", "the log"].cause
    holder, writer = connect(autocommit=False), connect(autocommit=False)
    append_to(EventStore(writer), "o-1")
    append_to(mails, "o-2")
    mails.connection.execute(LATER)
    holder.execute("select event_store.sequence_events()")
    seen = found(mails)
    pids = {name: f"process {each.info.backend_pid}" for name, each in (("holder", holder), ("writer", writer))}
    assert "holds the sequencer" in seen["log_held", pids["holder"]].cause
    assert "It has written" in seen["old_writer", pids["writer"]].cause
    # one cause is one incident
    assert "not_sequenced" not in {kind for kind, _ in seen}
    holder.rollback()
    writer.execute("prepare transaction 'left behind'")
    assert ("old_writer", "the prepared transaction left behind") in found(mails)
    writer.autocommit = True
    writer.execute("rollback prepared 'left behind'")


def test_the_rules_for_prometheus_have_the_same_thresholds() -> None:
    rules = yaml.safe_load((PROJECT / "docs" / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    expressions = {rule["alert"]: (rule["expr"], rule.get("for"), rule["labels"]["severity"]) for rule in rules}
    alike = {
        "MillraceNobodySequences": ("not_sequenced", incidents.SEQUENCER_IDLE_S),
        "MillraceLogIsHeldUp": ("log_held", incidents.SEQUENCER_HELD_S),
        "MillraceOldWriter": ("old_writer", incidents.OLD_WRITER_S),
        "MillraceViewIsLate": ("late", incidents.LATE_S),
        "MillraceDeadLetters": ("dead_letters", 0),
        "MillraceCaptureLacksChanges": ("gap", 0),
        "MillraceCaptureIsIdle": ("capture_idle", incidents.CAPTURE_IDLE_S),
        "MillraceCaptureTableIsStopped": ("stopped_table", 0),
        "MillraceQuarantinedChanges": ("quarantine", 0),
        "MillraceDagsterIsSilent": ("daemon", incidents.DAEMON_IDLE_S),
        "MillraceRunsWait": ("queue", incidents.QUEUED_S),
        "MillraceSensorFails": ("sensor", incidents.SENSOR_FAILURES),
    }
    for rule, (kind, threshold) in alike.items():
        expression, wait, severity = expressions.pop(rule)
        words = incidents.KINDS[kind]
        assert str(threshold) in re.findall(r"(?:>|>=) (\d+)", expression), rule
        assert words.severity == severity, rule
        assert words.wait_s == (int(wait.removesuffix("m")) * 60 if wait else 0), rule
    # those that a store that is away, or a dead alerter, could not send
    assert set(expressions) == {
        "MillraceIsSilent",
        "MillraceAlarmsWork",
        "MillraceAlertsAreSilent",
        "MillraceAlertsDoNotArrive",
    }
