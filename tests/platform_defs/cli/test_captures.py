"""The commands for operators of captures: their output, effects and refusals, on a real source."""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import errors
from millrace.assets.declarations import Declarations, Fault
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.source.readiness import NotReady
from millrace.capture.source.slot import FAILOVER_VERSION
from millrace.capture.store import CaptureStore, TableRegistration
from millrace.event_store.migrations import validate
from millrace.platform_defs.cli import capture as capture_commands
from tests.support.capturing.captured import Captured, captured, did, new_source
from tests.support.command_line import cells, millrace, parsed
from tests.support.factories import rows, start, value
from tests.support.migrators import empty
from tests.support.patience import patience, wait_until

__all__ = ["captured", "empty", "new_source"]
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(autouse=True)
def _declared(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, captured.capture)


def declare(monkeypatch: pytest.MonkeyPatch, *captures: Capture) -> None:
    found = Declarations(captures={c.name: c for c in captures})
    monkeypatch.setattr(capture_commands, "declared_beside", lambda *_: found)


def run(dsn: str, arguments: Sequence[str], answer: str | None = None, code: int = 0) -> str:
    return millrace("capture", *arguments, dsn=dsn, answer=answer, code=code)


def audited(captured: Captured) -> list[tuple[str, str]]:
    return rows(
        captured.store,
        "select operation, reason from event_store.audit_log where operation <> all (array['register_capture', 'record_gap']) order by audit_id",
    )


def slots(captured: Captured) -> list[str]:
    found = captured.source.connection.execute(
        "select slot_name from pg_replication_slots where database = current_database()"
    )
    return [slot for (slot,) in found]


def quarantine(captured: Captured) -> None:
    """Make a change that is too large for an event, a later one of the same row, and one of another row."""
    captured.drain()
    captured.source.run(
        "insert into items values (1, repeat('x', 2000000))", "update items set name = 'b' where id = 1",
        "insert into items values (2, 'c')",
    )  # fmt: skip
    captured.drain()


def test_status_shows_how_far_a_capture_is(captured: Captured, dsn: str) -> None:
    ((name, stored, *_),) = cells(run(dsn, ["status"]))
    assert (name, stored) == ("shop", "never ran")
    captured.drain()
    captured.source.run("insert into items values (1)")
    output = run(dsn, ["status"])
    ((_, stored, lag_bytes, lag_s, retained, waiting, quarantined, backfill, stopped),) = cells(output)
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", stored)
    assert int(lag_bytes.replace(",", "")) > 0
    assert float(lag_s) >= 0
    assert int(retained.replace(",", "")) > 0
    assert (waiting, quarantined, backfill, stopped) == ("0", "0", "0", "0")


def test_the_catalog_has_the_columns_of_captured_rows(captured: Captured, dsn: str) -> None:
    captured.drain()
    captured.source.run("alter table items drop column ok, add at date", "insert into items values (1)")
    captured.drain()
    found = {each["event"]: each["fields"] for each in parsed(millrace("show", "catalog", "--json", dsn=dsn))}
    fields = {"record.id": "integer", "record.name": "text", "record.amount": "numeric", "record.at": "date"}
    rows_of = dict.fromkeys(("backfilled", "deleted", "inserted", "updated"), fields)
    assert found == rows_of | {"schema_changed": {}, "truncated": {}}


def test_status_says_what_helps(captured: Captured, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    away = Capture("away", lambda: NOWHERE, (CapturedTable("items", decider="away"),))
    known = TableRegistration("public", "items", "away", ["id"], "1")
    CaptureStore(captured.store).register_capture("away", "slot_away", "publication_away", [known])
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slots(captured)[0],))
    with pytest.raises(errors.MillraceError):
        captured.drain()
    declare(monkeypatch, captured.capture, away)
    output = run(dsn, ["status"])
    assert "shop: there is no slot millrace_shop_" in output
    assert "millrace capture restart shop --reason WHY" in output
    assert "away: The source database does not answer." in output
    declare(monkeypatch)
    assert "shop: it is registered and no longer declared" in run(dsn, ["status"])


def test_check_and_status_say_what_may_take_the_slot(captured: Captured, dsn: str) -> None:
    captured.drain()
    source, (slot,) = captured.source.connection, slots(captured)
    settings = {"max_slot_wal_keep_size": "3GB", "idle_replication_slot_timeout": "2h"}
    if source.info.server_version < 180000:
        del settings["idle_replication_slot_timeout"]
    notes = [f"{name} is {setting}: beyond that the source takes a slot" for name, setting in settings.items()]
    # since PostgreSQL 17 standbys have slots of their primary
    notes += [f"slot {slot} is no failover slot"] * (source.info.server_version >= FAILOVER_VERSION)

    def said() -> list[list[int]]:
        outputs = (run(dsn, ["status"]), run(dsn, ["check", "shop"]))
        return [[output.count(note) for note in notes] for output in outputs]

    assert said() == [[0] * len(notes)] * 2
    source.execute("select pg_drop_replication_slot(%s)", (slot,))
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        for name, setting in settings.items():
            source.execute(f"alter system set {name} = '{setting}'".encode())
        captured.source.run("select pg_reload_conf()")
        wait_until(lambda: said() == [[1] * len(notes)] * 2, "both say each once")
    finally:
        for name in settings:
            source.execute(f"alter system reset {name}".encode())
        captured.source.run("select pg_reload_conf()")


def test_a_removal_leaves_a_publication_that_somebody_else_made(captured: Captured, dsn: str) -> None:
    captured.drain()
    (slot,) = slots(captured)
    for statement in ("drop publication {}", "create publication {} for table items"):
        captured.source.connection.execute(statement.format(slot).encode())
    assert "is removed" in run(dsn, ["remove", "shop", "--reason", "a test", "--yes"])
    assert slots(captured) == []
    assert value(captured.source.connection, "select count(*) from pg_publication") == 1


def test_a_check_says_whether_it_can_be_captured(captured: Captured, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "can be captured" in run(dsn, ["check", "shop"])
    assert slots(captured) == []
    missing = replace(captured.capture, tables=(CapturedTable("items"), CapturedTable("orders")))
    declare(monkeypatch, missing)
    with pytest.raises(NotReady, match=r"(?s)not ready.*table public\.orders: it does not exist"):
        run(dsn, ["check", "shop"])
    declare(monkeypatch, captured.capture)
    captured.drain()
    assert "can be captured" in run(dsn, ["check", "shop"])


def test_a_check_names_heirs_not_captured(captured: Captured, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not captured" not in run(dsn, ["check", "shop"])
    captured.source.run("create table special (id int primary key) inherits (items)")
    said = "the rows of public.special, which queries of public.items show, are not captured"
    assert said in run(dsn, ["check", "shop"])
    both = replace(captured.capture, tables=(CapturedTable("items"), CapturedTable("special")))
    declare(monkeypatch, both)
    assert "not captured" not in run(dsn, ["check", "shop"])


def test_a_restart_reads_all_rows_again_and_has_its_reason(captured: Captured, dsn: str) -> None:
    captured.source.run("insert into items values (1, 'a')")
    captured.drain()
    for generation in (2, 3):
        assert f"generation {generation}" in run(dsn, ["restart", "shop", "--reason", "the source was restored"])
    captured.drain()
    assert captured.replayed() == captured.table()
    assert audited(captured) == [("restart_capture", "the source was restored")] * 2
    assert len(slots(captured)) == 1


def test_a_capture_is_removed_when_somebody_says_yes_and_none_runs(captured: Captured, dsn: str) -> None:
    captured.source.run("insert into items values (1)")
    captured.drain()
    with captured.process("a run"):
        for command in (["restart", "shop"], ["remove", "shop", "--yes"]):
            with pytest.raises(errors.CaptureInUse, match="a run"):
                run(dsn, [*command, "--reason", "a test"])
    for answer in ("n\n", ""):
        with pytest.raises(errors.MillraceError, match=r"(?s)was not removed.*--yes"):
            run(dsn, ["remove", "shop", "--reason", "replaced"], answer)
    assert len(slots(captured)) == 1
    assert "is removed" in run(dsn, ["remove", "shop", "--reason", "replaced"], "y\n")
    assert slots(captured) == []
    assert value(captured.store, "select count(*) from event_store.events") == 1
    assert audited(captured) == [("unregister_capture", "replaced")]
    with pytest.raises(errors.UnknownCapture, match="shop"):
        run(dsn, ["remove", "shop", "--reason", "again", "--yes"])


def test_quarantined_changes_are_listed_requeued_and_discarded(captured: Captured, dsn: str) -> None:
    captured.drain()
    assert "no quarantined changes" in run(dsn, ["quarantined", "shop"])
    quarantine(captured)
    large, behind = cells(run(dsn, ["quarantined", "shop"]))
    assert large[1:4] == ["table:public.items", "[1]", "inserted"]
    assert "1048576" in large[4]
    assert behind[2:] == ["[1]", "updated", "waits for one before it"]
    for _ in range(2):
        assert "0 changes are events now; 2 still wait" in run(dsn, ["requeue", "shop", "--reason", "a try"])
    assert "is given up" in run(dsn, ["discard", large[0], "--reason", "a test row"])
    with pytest.raises(errors.NotQuarantined):
        run(dsn, ["discard", large[0], "--reason", "again"])
    assert "1 changes are events now; 0 still wait" in run(dsn, ["requeue", "shop", "--reason", "go on"])
    assert captured.replayed() == captured.table()
    assert [operation for operation, _ in audited(captured)].count("discard_change") == 1


def test_a_capture_that_is_not_there_is_named(dsn: str) -> None:
    for command in ("quarantined", "requeue --reason w", "remove --reason w --yes"):
        with pytest.raises(errors.UnknownCapture, match="shop"):
            run(dsn, [*command.split(), "shop"])
    for command in ("check", "restart --reason w", "remove --reason w --yes"):
        with pytest.raises(errors.MillraceError, match=r"(?s)no capture 'shopp'.*Declared are: shop"):
            run(dsn, [*command.split(), "shopp"])
    for command, said in (
        ("restart shop", "--reason"),
        ("remove shop", "--reason"),
        ("requeue shop", "--reason"),
        ("discard 1", "--reason"),
        ("discard first --reason w", "NUMBER"),
        ("check", "CAPTURE"),
    ):
        assert said in run(dsn, command.split(), code=2), command


def test_a_source_that_does_not_answer_is_named(dsn: str, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("MILLRACE_DSN", dsn)
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "millrace.examples.shop")
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    for command in (["check", "crm"], ["restart", "crm", "--reason", "w"]):
        with pytest.raises(errors.Unreachable, match=r"(?s)no customer database.*Set MILLRACE_CRM_DSN"):
            run(dsn, command)
    declare(monkeypatch, replace(captured.capture, source=lambda: NOWHERE))
    for command in (["check", "shop"], ["restart", "shop", "--reason", "w"]):
        with pytest.raises(errors.Unreachable, match="source database does not answer"):
            run(dsn, command)


def test_a_store_is_brought_up_to_date_by_who_may(dsn: str, captured: Captured, empty: str) -> None:
    captured.drain()
    captured.store.execute("update event_store.migrations set name = 'other' where version = 0")
    captured.store.execute("drop function event_store_platform.discard_change")
    small = dsn.replace("postgres@", "somebody_reading@")
    captured.store.execute("create role somebody_reading login in role event_store_reader")
    try:
        with pytest.raises(errors.MillraceError, match=r"(?s)somebody_reading may not bring.*`millrace migrate`"):
            run(small, ["status"])
        assert cells(run(dsn, ["status"]))
        validate(dsn)
        # an up-to-date store is only read
        assert cells(run(small, ["status"]))
    finally:
        captured.store.execute("drop role somebody_reading")
    # a database without a store is not made into one
    with pytest.raises(errors.SchemaMismatch, match=r"(?s)no event store.*millrace migrate"):
        run(empty, ["status"])


def test_a_file_that_fails_is_no_removed_capture(dsn: str, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    fault = Fault("captures", "shop", Path("my_platform/captures/shop.py"), 3, "NameError: name 'x' is not defined")
    monkeypatch.setattr(capture_commands, "declared_beside", lambda *_: Declarations(faults=(fault,)))
    output = run(dsn, ["status"])
    assert "its declaration may be one that fails to load: my_platform/captures/shop.py:3: NameError" in output
    assert "no longer declared" not in output
    with pytest.raises(errors.MillraceError, match=r"(?s)There is no capture 'shop'.*shop.py:3: NameError"):
        run(dsn, ["restart", "shop", "--reason", "w"])


def test_run_capture_captures_until_it_is_told_to_end(captured: Captured, dsn: str) -> None:
    captured.drain()
    captured.source.run("insert into items values (1, 'a')")

    def end() -> None:
        wait_until(lambda: did(captured) != [], "the row is an event")
        os.kill(os.getpid(), signal.SIGTERM)

    ending = start(end)
    millrace("run", "capture", "shop", dsn=dsn)
    ending.result(patience())
    assert value(captured.store, "select lease_owner from event_store.captures") is None
    with pytest.raises(errors.MillraceError, match="There is no capture 'other'"):
        millrace("run", "capture", "other", dsn=dsn)


# Verifying


def verified(dsn: str, *arguments: str, code: int = 0) -> list[str]:
    return list(cells(run(dsn, ["verify", "shop", *arguments], code=code))[0])


def test_verify_tells_by_its_exit_and_repairs_what_is_quarantined(captured: Captured, dsn: str) -> None:
    quarantine(captured)
    assert verified(dsn, code=1) == ["public.items", "2", "1", "0", "0", "0", "1", "2"]
    captured.source.run("update items set name = 'short' where id = 1")
    verified(dsn, "items", code=1)
    repair = ["verify", "shop", "public.items", "--repair"]
    output = run(dsn, [*repair, "--where", "id < 2", "--reason", "it is shorter now"])
    assert "[1]" in output
    assert list(cells(output)[0]) == ["public.items", "1", "0", "0", "1", "0", "0", "0"]
    assert verified(dsn) == ["public.items", "2", "2", "0", "0", "0", "0", "0"]
    assert captured.replayed() == captured.table()
    captured.source.run("insert into items values (3, 'new')")
    assert verified(dsn, "--repair") == ["public.items", "3", "3", "0", "0", "0", "0", "0"]
    assert audited(captured)[-1] == ("begin_verification", "capture verify --repair")


def test_verify_leaves_out_what_nothing_names(captured: Captured, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.source.run("create table clicks (page text)", "insert into items values (1)")
    tables = (CapturedTable("clicks", key=()), CapturedTable("items"))
    declare(monkeypatch, replace(captured.capture, tables=tables, actions=("insert",)))
    output = run(dsn, ["verify", "shop"])
    assert [row[:3] for row in map(list, cells(output))] == [["public.items", "1", "1"]]
    assert "Nothing names the rows of public.clicks: they are not compared." in output
    with pytest.raises(errors.MillraceError, match=r"nothing names the rows of public\.clicks"):
        run(dsn, ["verify", "shop", "clicks"])
    with pytest.raises(errors.MillraceError, match="has no table 'orders'") as refused:
        run(dsn, ["verify", "shop", "orders", "--repair", "--reason", "why"])
    assert "public.items" in str(refused.value)
    with pytest.raises(errors.MillraceError, match="A condition is of one table"):
        run(dsn, ["verify", "shop", "--where", "id < 2"])


def test_verify_tells_that_changes_wait_whose_row_is_gone(captured: Captured, dsn: str) -> None:
    quarantine(captured)
    captured.source.run("delete from items where id = 1")
    assert verified(dsn, code=1) == ["public.items", "1", "1", "0", "0", "0", "0", "3"]
    verified(dsn, "--repair")
    assert captured.replayed() == captured.table()
