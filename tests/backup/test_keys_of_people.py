"""What is forgotten stays forgotten after a restore, and what lives opens, before and after a rotation."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from millrace.backup.backup import backup
from millrace.backup.restore import restore
from millrace.errors import DataRefused, InvalidSetting, KeyGone, MillraceError
from millrace.event_store import NewEvent
from millrace.event_store.key_rotation import KeyStore, restored_keys, rotate
from millrace.event_store.platform import PlatformStore
from millrace.personal.folder import begun_folder
from millrace.personal.values import Forgotten, Sealed
from tests.support.backups import tables
from tests.support.command_line import millrace
from tests.support.customers import begin, emails, forget, move, readmit, sealing
from tests.support.factories import refusal, rows


def kinds(dsn: str, folder: Path, *people: str) -> list[object]:
    """Return what a program reads of people: `Forgotten`, `Sealed`, or the address."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = emails(sealing(connection, folder), *people)
    return [type(each) if isinstance(each, Sealed) else each for each in found]


def test_a_restore_forgets_again(
    store: PlatformStore, dsn: str, target: str, new_target: Callable[[], str], tmp_path: Path
) -> None:
    keys = begin(store, tmp_path / "keys")
    people = sealing(store.connection, keys.path)
    for person in ("gone", "lives", "back"):
        move(people, person, f"{person}@a")
    backup(dsn, tmp_path / "before")
    for person in ("gone", "back"):
        forget(store.connection, keys, f"customer:{person}")
    readmit(store.connection, keys, "customer:back")
    move(sealing(store.connection, keys.path), "back", "new@a")
    backup(dsn, tmp_path / "after")

    restore(target, tmp_path / "before", keys=keys.path)
    assert kinds(target, keys.path, "gone", "lives", "back") == [Forgotten, "lives@a", Forgotten]
    with psycopg.connect(target) as connection:
        forgets = rows(connection, "select detail ->> 'forgotten' from event_store.audit_log where operation ~ 'keys'")
        assert forgets == [("2",)]
        assert restored_keys(connection, keys.path) == 0
    whole = new_target()
    restore(whole, tmp_path / "after", keys=keys.path)
    assert kinds(whole, keys.path, "gone", "lives", "back") == [Forgotten, "lives@a", Forgotten, "new@a"]
    with psycopg.connect(whole, autocommit=True) as connection:
        restored, taken = tables(PlatformStore(connection)), tables(store)
        assert [restored[each] for each in ("deciders", "epochs", "subject_keys")] == [
            taken[each] for each in ("deciders", "epochs", "subject_keys")
        ]
        # its schema still wants sealed values, with living keys
        move(sealing(connection, keys.path), "lives", "later@a")
        with pytest.raises(DataRefused):
            PlatformStore(connection).append(
                "customer", "c", NewEvent("customer_moved", {"customer_id": "c", "email": "plain@a"})
            )


def test_a_backup_from_before_rotations(store: PlatformStore, dsn: str, target: str, tmp_path: Path) -> None:
    keys = begin(store, tmp_path / "keys")
    people = sealing(store.connection, keys.path)
    for person in ("gone", "lives", "later"):
        move(people, person, f"{person}@a")
    backup(dsn, tmp_path / "before")
    forget(store.connection, keys, "customer:gone")
    following = keys.begun_next()
    KeyStore(store.connection).begin_key_epoch(2, following.fingerprint)
    assert "half done" in refusal(MillraceError, lambda: backup(dsn, tmp_path / "half")).message
    assert [rotate(dsn, keys.path), rotate(dsn, keys.path)] == [2, 3]
    forget(store.connection, keys, "customer:later")
    restore(target, tmp_path / "before", keys=keys.path)
    assert kinds(target, keys.path, "gone", "lives", "later") == [Forgotten, "lives@a", Forgotten]
    # the restored store goes on with the newest key
    with psycopg.connect(target, autocommit=True) as connection:
        move(sealing(connection, keys.path), "new", "new@a")
    assert [rotate(target, keys.path), kinds(target, keys.path, "new", "lives")] == [3, ["new@a", "lives@a"]]


def test_a_restore_needs_the_right_folder(store: PlatformStore, dsn: str, target: str, tmp_path: Path) -> None:
    keys = begin(store, tmp_path / "keys")
    move(sealing(store.connection, keys.path), "c", "c@a")
    backup(dsn, tmp_path / "saved")
    with pytest.raises(InvalidSetting, match="state the folder of keys"):
        restore(target, tmp_path / "saved")
    foreign = begun_folder(tmp_path / "foreign")
    refusal(KeyGone, lambda: restore(target, tmp_path / "saved", keys=foreign.path))
    foreign.begun_next().destroy_earlier()
    with pytest.raises(InvalidSetting, match=r"cannot open key .* of epoch 1"):
        restore(target, tmp_path / "saved", keys=foreign.path)
    with psycopg.connect(target, autocommit=True) as connection:
        assert not any(tables(PlatformStore(connection))[each] for each in ("events", "subject_keys", "deciders"))
    assert "Restored 1 events" in millrace("restore", tmp_path / "saved", "--keys", keys.path, dsn=target)
    assert kinds(target, keys.path, "c") == ["c@a"]
