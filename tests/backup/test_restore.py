"""A restore loads only a whole backup, leaves no rights behind, and blocks appends meanwhile."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from millrace.archive.files import file_checksum
from millrace.backup.backup import backup
from millrace.backup.manifest import read_manifest
from millrace.backup.restore import restore
from millrace.backup.store import BackupStore
from millrace.errors import BackupDamaged, Malformed, SchemaMismatch
from millrace.event_store.platform import PlatformStore
from tests.support.backups import rewrite, tables
from tests.support.factories import append, refusal, register_orders, rows, value
from tests.support.logins import logins


def test_what_is_loaded_must_be_whole(saved: Path, restored: PlatformStore, target: str) -> None:
    marks = [(p.partition, p.earliest_position, p.high_water_mark) for p in read_manifest(saved).partitions]

    def nothing_between(*marks: tuple[int, ...]) -> None:
        partition, earliest, high = map(list, zip(*marks, strict=True))
        with restored.connection.transaction():
            BackupStore(restored.connection).begin_restore()
            BackupStore(restored.connection).finish_restore(partition, earliest, high, 1, 1, {})

    assert "holds 0 events" in str(refusal(BackupDamaged, lambda: nothing_between(*marks)).detail)
    refused = refusal(BackupDamaged, lambda: nothing_between((0, 0, 0)))
    assert "1 log partitions are stated, of 16" in str(refused.detail)
    assert restored.partition_info()[0].high_water_mark == 0
    refusal(Malformed, lambda: BackupStore(restored.connection).finish_restore([0], [0], [0], 1, 1, {}))
    restore(target, saved)


def test_a_time_limit_ends_none(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    # a statement under a time limit would fail
    limits = "-c statement_timeout=1h -c idle_in_transaction_session_timeout=1h"
    unlimited = (
        "current_setting('statement_timeout') = '0' and current_setting('idle_in_transaction_session_timeout') = '0'"
    )
    filled.connection.execute(
        f"""
        create or replace function event_store_platform.backup_cut()
        returns table (archive_id uuid, last_offset bigint, lease_token bigint)
        language sql stable security definer as $$
          select a.archive_id, 1000, 1000 from event_store.archive a where {unlimited}
        $$""".encode()
    )
    backup(make_conninfo(dsn, options=limits), tmp_path)
    restored.connection.execute(
        f"""
        create function event_store.limited() returns trigger language plpgsql as $$
        begin assert {unlimited}; return null; end $$;
        create trigger limited after insert on event_store.deciders execute function event_store.limited()""".encode()
    )
    assert restore(make_conninfo(target, options=limits), tmp_path).events


def test_marks_come_back_and_new_ones_differ(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    filled.mark_log("a day")
    manifest = backup(dsn, tmp_path)
    restore(target, tmp_path)
    cut = restored.marks_at(datetime.now(UTC))
    assert cut is not None
    assert (cut.reason, cut.marks) == ("backup", [each.high_water_mark for each in manifest.partitions])
    kept = rows(restored.connection, "select mark_id from event_store.log_marks where reason = 'a day'")
    assert restored.mark_log("another day").mark_id > max(cut.mark_id, *kept[0])


def test_a_backup_without_later_columns_is_restored(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    filled.register_view(
        "pushed",
        edge_function_url="https://example.com/",
        push_format="cloudevents",
        push_upcast=True,
        push_unseal=True,
        version=3,
    )
    backup(dsn, tmp_path)
    later = ("version", "push_format", "push_upcast", "push_unseal")

    def without(body: dict[str, Any]) -> None:
        (views,) = (each for each in body["tables"] if each["table"] == "views")
        path = tmp_path / views["path"]
        pq.write_table(pq.read_table(path).drop_columns(list(later)), path)
        views["columns"] = [column for column in views["columns"] if column not in later]
        views |= {"bytes": path.stat().st_size, "checksum": file_checksum(path)}

    rewrite(tmp_path, without)
    restore(target, tmp_path)
    defaults = "select distinct version, push_format, push_upcast, push_unseal from event_store.views"
    assert rows(restored.connection, defaults) == [(0, "json", False, False)]


Versions = list[tuple[int, int | None]]
# (version, previous version) in the order of offsets, the version up to which is purged, and the expected error
STREAMS: tuple[tuple[Versions, int, str | None], ...] = (
    ([(1, None), (3, 1)], 0, "stream (order, o-1) has 2 events of versions 1 to 3, purged up to 0"),
    ([(2, 1)], 0, "stream (order, o-1) has 1 events of versions 2 to 2, purged up to 0"),
    ([(4, 3), (5, 4)], 2, "stream (order, o-1) has 2 events of versions 4 to 5, purged up to 2"),
    ([(1, 7)], 0, "is version 1 of its stream and follows 00000000-0000-0000-0000-000000000007"),
    ([(1, None), (2, None)], 0, "is version 2 of its stream and follows none"),
    ([(2, None)], 2, "is version 2 of its stream and follows none"),
    ([(1, None), (2, 7)], 0, "is version 2 of its stream and follows 00000000-0000-0000-0000-000000000007"),
    ([(2, 1), (1, None)], 0, "at offset 1 is version 2 of its stream"),
    ([(1, None), (2, 1)], 0, None),
    ([(3, 2), (4, 3)], 2, None),
    # purged events are back from the archive: some or all of them
    ([(3, 2), (4, 3)], 3, None),
    ([(3, 2), (4, 3)], 4, None),
    ([(1, None), (2, 1)], 2, None),
)


def load(
    connection: psycopg.Connection, events: Versions, purged: int = 0, offsets: Sequence[int] = range(1, 9)
) -> None:
    """Restore one stream with these offsets in the order of its log partition."""
    with connection.transaction():
        BackupStore(connection).begin_restore()
        if purged:
            connection.execute(
                "insert into event_store.purged_streams values ('order', 'o-1', gen_random_uuid(), 0, %s, false)",
                (purged,),
            )
        for position, (version, previous) in enumerate(events):
            connection.execute(
                """
                insert into event_store.events (
                  event, event_id, decider, decider_id, data, command_id, previous_id, created_at, "offset", transaction_id, version
                )
                select 'placed', lpad(%(version)s::text, 32, '0')::uuid, 'order', 'o-1', '{}', gen_random_uuid(),
                  lpad(%(previous)s::text, 32, '0')::uuid, now(), %(offset)s, '3', %(version)s
                """,
                {"version": version, "previous": previous, "offset": offsets[position]},
            )
            connection.execute(
                "insert into event_store.event_log values (event_store.stream_partition('o-1'::text, 16), %s, %s)",
                (position, offsets[position]),
            )
        (home,) = rows(connection, "select event_store.stream_partition('o-1'::text, 16)")
        ends = [len(events) if partition == home[0] else 0 for partition in range(16)]
        BackupStore(connection).finish_restore(list(range(16)), [0] * 16, ends, 9, 1, {})


def test_a_stream_must_have_all_its_versions_at_rising_offsets(restored: PlatformStore) -> None:
    kept = "select version from event_store.purged_streams"
    for events, purged, fault in STREAMS:
        if fault is not None:
            refused = refusal(BackupDamaged, lambda: load(restored.connection, events, purged))  # noqa: B023 - at once
            assert fault in str(refused.detail)
            continue
        with suppress(psycopg.Rollback), restored.connection.transaction():
            load(restored.connection, events, purged)
            found = [event.version for event in restored.read("order", "o-1")]
            assert found == [version for version, _ in events]
            assert rows(restored.connection, kept) == ([(events[0][0] - 1,)] if events[0][0] > 1 else [])
            raise psycopg.Rollback
    # regardless of the positions
    refused = refusal(BackupDamaged, lambda: load(restored.connection, [(1, None), (2, 1)], offsets=(2, 1)))
    assert "at offset 1 is version 2 of its stream" in str(refused.detail)


def test_a_backup_of_a_later_version_is_refused(saved: Path, restored: PlatformStore, target: str) -> None:
    restored.connection.execute("alter table event_store.audit_log drop column reason")
    refused = refusal(SchemaMismatch, lambda: restore(target, saved))
    assert 'column "reason" of relation "audit_log" does not exist' in str(refused.detail)
    assert restored.view_info() == []


def test_an_owner_keeps_no_right_to_the_tables(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    with logins(filled.connection) as login:
        user = login("event_store_owner").info.user
        backup(dsn.replace("postgres@", f"{user}@"), tmp_path)
        restore(target.replace("postgres@", f"{user}@"), tmp_path)
        assert tables(restored) == tables(filled)
        query = "select has_table_privilege(%s, 'event_store.events', 'insert')"
        assert value(restored.connection, query, user) is False
        done_by = "select done_by from event_store.audit_log order by audit_id desc limit 1"
        assert value(restored.connection, done_by) == user


def test_a_restore_that_is_not_finished_cannot_be_committed(restored: PlatformStore) -> None:
    insert: LiteralString = "insert into event_store.deciders values ('order', 'placed', 1, '')"
    with logins(restored.connection) as login:
        owner = login("event_store_owner")
        owner.autocommit = False
        BackupStore(owner).begin_restore()
        owner.execute(insert)
        with pytest.raises(psycopg.Error, match="a restore has begun and is not finished") as refused:
            owner.commit()
        assert refused.value.sqlstate == "MR005"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute(insert)
        owner.rollback()
        # a rollback to a savepoint and an early constraint check change nothing
        owner.execute("savepoint before")
        BackupStore(owner).begin_restore()
        owner.execute("rollback to before")
        owner.commit()
        BackupStore(owner).begin_restore()
        with pytest.raises(psycopg.Error, match="not finished"):
            owner.execute("set constraints all immediate")
        owner.rollback()
        assert tables(restored)["deciders"] == []
        for (table,) in rows(restored.connection, "select unnest(event_store_private.restore_tables())::text"):
            may = "select has_table_privilege(%s, %s, 'insert')"
            assert value(restored.connection, may, owner.info.user, table) is False


def test_a_restore_that_sequences_cannot_be_committed(restored: PlatformStore, target: str) -> None:
    # an event of an ended transaction, as sequencers take them
    before = value(restored.connection, "select pg_current_xact_id()::text")
    with psycopg.connect(target) as owner:
        BackupStore(owner).begin_restore()
        owner.execute("insert into event_store.deciders values ('order', 'placed', 1, '')")
        owner.execute(
            "insert into event_store.events"
            ' (event, event_id, event_version, decider, decider_id, data, command_id, final, created_at, "offset", transaction_id)'
            " select 'placed', u, 1, 'order', 'o-1', '{}', u, false, now(), 1, %s::xid8 from gen_random_uuid() u",
            (before,),
        )
        assert PlatformStore(owner).sequence_events() == 0
        with pytest.raises(psycopg.Error, match="a restore has begun and is not finished"):
            owner.commit()
    assert tables(restored)["events"] == []


def test_while_a_restore_runs_nobody_else_appends(restored: PlatformStore, target: str) -> None:
    restored.connection.execute("set lock_timeout = '100ms'")
    with psycopg.connect(target) as other:
        BackupStore(other).begin_restore()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            register_orders(restored)
        assert restored.sequence_events() == 0
        other.rollback()
    append(register_orders(restored))
