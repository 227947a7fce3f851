"""A rotation waits for the folders that lack its file, and is confirmed once none has the file before."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace.event_store.key_rotation import KeyStore, rotate
from millrace.event_store.platform import PlatformStore
from millrace.operations.privacy import confirmed, planned, unconfirmed
from millrace.operations.privacy import forget as forget_person
from millrace.personal import Sealer
from millrace.personal.folder import KeyFolder, opened_folder
from tests.support.customers import begin, emails, forget, move, sealing
from tests.support.factories import Connect, refusal, rows
from tests.support.views.isolation import REPEATABLE_READ


@pytest.fixture
def keys(store: PlatformStore, tmp_path: Path) -> KeyFolder:
    return begin(store, tmp_path / "keys")


def faults(store: PlatformStore) -> str:
    known = KeyStore(store.connection)
    return " ".join(unconfirmed(known.key_counts(), known.key_holders()))


def is_confirmed(store: PlatformStore) -> bool:
    return confirmed(KeyStore(store.connection).key_counts(), 1) is not None


def test_a_copied_folder_is_waited_for_and_named(
    store: PlatformStore, dsn: str, keys: KeyFolder, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(keys.path, copy)
    elsewhere = sealing(store.connection, copy)
    move(elsewhere, "c-1", "a@a")
    refused = refusal(MillraceError, lambda: rotate(dsn, keys.path, wait_s=0))
    assert f"lack {keys.path}/epoch-2.key: the rotation has not begun" in refused.message
    assert str(copy) in (refused.detail or "")
    assert str(keys.path) not in (refused.detail or "")
    # meanwhile all goes on: the store has not begun the epoch whose file is here
    move(sealing(store.connection, keys.path), "c-2", "b@a")
    forget_person(KeyStore(store.connection), keys.path, "customer:c-2", "asked")
    assert faults(store) == ""
    shutil.copy(keys.path / "epoch-2.key", copy)
    move(elsewhere, "c-3", "c@a")
    assert rotate(dsn, keys.path, wait_s=0) == 2
    assert f"epoch-1.key is destroyed here, and not by: {KeyStore(store.connection).key_holders()[0]}." in faults(store)
    assert (str(copy) in faults(store), str(keys.path) in faults(store), is_confirmed(store)) == (True, False, False)
    kept = (copy / "epoch-1.key").read_bytes()
    opened_folder(copy).destroy_earlier()
    move(elsewhere, "c-4", "d@a")
    assert (faults(store), is_confirmed(store)) == ("", True)
    # a copy of it that comes back is told
    (copy / "epoch-1.key").write_bytes(kept)
    (copy / "epoch-1.key").chmod(0o600)
    move(elsewhere, "c-5", "e@a")
    assert (str(copy) in faults(store), is_confirmed(store)) == (True, False)
    holder = KeyStore(store.connection).key_holders()[0]
    assert KeyStore(store.connection).retire_holder(holder.host, holder.folder, "scrapped")
    assert (faults(store), is_confirmed(store)) == ("", True)


def test_a_holder_that_is_silent_for_a_day_is_passed_over_and_named(
    store: PlatformStore, dsn: str, keys: KeyFolder, tmp_path: Path
) -> None:
    shutil.copytree(keys.path, tmp_path / "copy")
    move(sealing(store.connection, tmp_path / "copy"), "c-1", "a@a")
    store.connection.execute("update event_store_keys.holders set seen_at = '2026-01-31 10:00:30+00'")
    assert rotate(dsn, keys.path, wait_s=0) == 2
    assert f"{tmp_path / 'copy'} (not seen since 2026-01-31 10:00 UTC)" in faults(store)


def test_a_key_that_waits_longer_than_planned_is_told(store: PlatformStore, keys: KeyFolder) -> None:
    move(sealing(store.connection, keys.path), "c-1", "a@a")
    forget(store.connection, keys, "customer:c-1")
    assert faults(store) == ""
    store.connection.execute("update event_store_keys.subject_keys set forgotten_at = '2026-01-31 10:00+00'")
    assert "Keys are forgotten since 2026-01-31, and no rotation followed" in faults(store)
    monday = datetime(2026, 2, 2, 4, 30, tzinfo=UTC)
    assert planned(datetime(2026, 1, 31, 10, tzinfo=UTC)) == planned(monday.replace(minute=29)) == monday
    assert planned(monday) == monday.replace(day=9)


def test_a_sealer_notes_its_folder_when_it_asks_for_keys(store: PlatformStore, keys: KeyFolder) -> None:
    held = "select folder, epochs from event_store_keys.holders"
    move(sealing(store.connection, keys.path), "c-1", "a@a")
    assert rows(store.connection, held) == [(str(keys.path), [1])]
    store.connection.execute("delete from event_store_keys.holders")
    reader = sealing(store.connection, keys.path)
    with store.connection.transaction():
        assert emails(reader, "c-1") == ["a@a"]
        # else its end is waited for by the log
        assert rows(store.connection, "select pg_current_xact_id_if_assigned()") == [(None,)]
    reader = sealing(store.connection, keys.path)
    assert emails(reader, "c-1") == ["a@a"]
    assert rows(store.connection, held) == [(str(keys.path), [1])]
    sealer = Sealer(keys)
    assert (sealer.to_note(), sealer.to_note()) == (keys.holder, None)
    keys.begun_next()
    assert (sealer.to_note() or ((), (), []))[2] == [1, 2]
    sealer._noted_until = 0
    assert sealer.to_note()
    shutil.rmtree(keys.path)
    assert (sealer.to_note() or ((), (), [0]))[2] == []
    # the store does not know that the file is destroyed
    KeyStore(store.connection).note_holder(keys)
    assert not is_confirmed(store)


def test_a_note_waits_for_none_and_fails_no_transaction(
    store: PlatformStore, keys: KeyFolder, connect: Connect
) -> None:
    first, second, stale = (connect(autocommit=False) for _ in range(3))
    stale.isolation_level = REPEATABLE_READ
    stale.execute("select 1 from event_store.deciders")
    for each in (first, second):
        KeyStore(each).note_holder(keys)
    second.commit()
    assert rows(store.connection, "select count(*) from event_store_keys.holders") == [(0,)]
    first.commit()
    store.connection.execute("update event_store_keys.holders set epochs = '{7}'")
    # of a snapshot from before
    KeyStore(stale).note_holder(keys)
    stale.commit()
    with store.connection.transaction():
        store.connection.execute("set transaction read only")
        KeyStore(store.connection).note_holder(keys)
    assert rows(store.connection, "select epochs from event_store_keys.holders") == [([7],)]


def test_what_is_forgotten_while_it_is_wrapped_is_in_no_file(
    store: PlatformStore, dsn: str, keys: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for person in ("c-1", "c-2"):
        move(sealing(store.connection, keys.path), person, "a@a")
    noting = KeyFolder.note_living

    def note(folder: KeyFolder, wrapped: dict[str, bytes]) -> None:
        noting(folder, wrapped)
        if wrapped:
            forget(store.connection, keys, "customer:c-1")

    monkeypatch.setattr(KeyFolder, "note_living", note)
    assert rotate(dsn, keys.path) == 2
    living = rows(store.connection, "select key_id from event_store_keys.subject_keys where wrapped is not null")
    assert [(name,) for name in opened_folder(keys.path).living()] == living
    assert len(living) == 1
