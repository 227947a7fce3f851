"""A rotation wraps all living keys anew before it destroys a file; a kill anywhere is finished by the next call."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event

import psycopg
import pytest
from psycopg import IsolationLevel

from millrace.errors import InvalidSetting, KeyGone, MillraceError
from millrace.event_store import EventStore
from millrace.event_store.key_rotation import KeyStore, rotate
from millrace.event_store.platform import PlatformStore
from millrace.personal.folder import KeyFolder, begun_folder, opened_folder
from millrace.personal.values import Forgotten, Sealed, StoredKey
from tests.support.customers import begin, emails, forget, move, sealing
from tests.support.factories import Connect, refusal, rows, start, start_blocked, value
from tests.support.incidents.servers import Copy
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.running.own_server import own_server
from tests.support.views.isolation import REPEATABLE_READ

PEOPLE = [f"c-{number}" for number in range(7)]


@pytest.fixture
def keys(store: PlatformStore, tmp_path: Path) -> KeyFolder:
    """Return the folder of a store with a few people."""
    keys = begin(store, tmp_path / "keys")
    people = sealing(store.connection, keys.path)
    for person in PEOPLE:
        move(people, person, f"{person}@a")
    return keys


def files(keys: KeyFolder) -> set[str]:
    return {each.name for each in keys.path.iterdir() if not each.name.startswith(".")}


def wrapped(store: PlatformStore) -> dict[str, tuple[int, bytes]]:
    """Return each living key's epoch and what its row holds, as every copy of the database has it."""
    found = rows(
        store.connection, "select key_id, epoch, wrapped from event_store_keys.subject_keys where wrapped is not null"
    )
    return {name: (epoch, bytes(key)) for name, epoch, key in found}


def test_a_copy_from_before_opens_nothing(store: PlatformStore, dsn: str, keys: KeyFolder) -> None:
    forget(store.connection, keys, f"customer:{PEOPLE[0]}")
    before = wrapped(store)
    assert rotate(dsn, keys.path) == 2
    now = opened_folder(keys.path)
    assert files(keys) == {"subjects.key", "epoch-2.key", "living-2.keys", "forgotten.list"}
    assert all((keys.path / name).stat().st_mode & 0o077 == 0 for name in files(keys))
    for name, (epoch, key) in before.items():
        assert (epoch, [now.unwrapped([StoredKey(name, of, key)]) for of in (1, 2)]) == (1, [{}, {}])
    assert {name: key for name, (_, key) in wrapped(store).items()} == now.living()
    gone, *others = emails(sealing(store.connection, keys.path), *PEOPLE)
    assert (type(gone), others) == (Forgotten, [f"{person}@a" for person in PEOPLE[1:]])
    ended = "select epoch, destroyed_at is not null, living from event_store.key_counts()"
    assert rows(store.connection, ended) == [(1, True, 0), (2, False, 6)]
    assert rotate(dsn, keys.path) == 3
    assert files(keys) == {"subjects.key", "epoch-3.key", "living-3.keys", "forgotten.list"}


# where a rotation is killed, in the order of its steps
KILLED_AT = {
    "the next file is there": "KeyFolder.begun_next = after(KeyFolder.begun_next)",
    "the folder is noted": "KeyStore.note_holder = after(KeyStore.note_holder)",
    "the epoch has begun": "KeyStore.begin_key_epoch = after(KeyStore.begin_key_epoch)",
    "a batch is wrapped": "KeyStore.wrap_keys = after(KeyStore.wrap_keys, 2)",
    "a batch is in the folder": "KeyFolder.note_living = after(KeyFolder.note_living, 2)",
    "all is wrapped": "key_rotation.require_wrapped = die",
    "the standbys have it": "KeyFolder.destroy_earlier = die",
    "a file is overwritten": "folder.Path.unlink = die",
    "the files are destroyed": "KeyStore.end_key_epoch = die",
}
PROGRAM = """
import os, signal, sys
from pathlib import Path
from millrace.event_store import key_rotation
from millrace.event_store.key_rotation import KeyStore
from millrace.personal import folder
from millrace.personal.folder import KeyFolder
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def after(work, number=1):
    calls = []
    def wrapped(*a, **k):
        result = work(*a, **k)
        calls.append(1)
        return die() if len(calls) == number else result
    return wrapped
point, dsn, keys = sys.argv[1:]
exec(point)
key_rotation.BATCH = 2
key_rotation.rotate(dsn, Path(keys))
"""


def test_a_kill_at_each_step(store: PlatformStore, dsn: str, keys: KeyFolder) -> None:
    all_wrapped = False
    for name, point in KILLED_AT.items():
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, point, dsn, str(keys.path)],
            cwd=PROJECT,
            timeout=10 * patience(),
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, name
        all_wrapped = all_wrapped or name == "all is wrapped"
        epochs = {epoch for epoch, _ in wrapped(store).values()}
        assert epochs == {2} if all_wrapped else 1 in epochs, name
        assert ("epoch-1.key" in files(keys)) == (name != "the files are destroyed"), name
        # programs that start now seal and open
        people = sealing(store.connection, keys.path)
        move(people, PEOPLE[0], name)
        assert emails(people, *PEOPLE)[-6:] == [f"{person}@a" for person in PEOPLE[1:]], name
        living = opened_folder(keys.path).living() if all_wrapped else {}
        assert living == ({key: raw for key, (_, raw) in wrapped(store).items()} if all_wrapped else {}), name
    assert rotate(dsn, keys.path) == 2
    assert files(keys) == {"subjects.key", "epoch-2.key", "living-2.keys"}
    assert value(store.connection, "select confirmed_at is not null from event_store_keys.epochs where epoch = 1")
    assert emails(sealing(store.connection, keys.path), *PEOPLE)[-6:] == [f"{person}@a" for person in PEOPLE[1:]]


def test_a_line_that_a_kill_cut_off(keys: KeyFolder) -> None:
    keys.note_forgotten(["a" * 22])
    with (keys.path / "forgotten.list").open("a") as out:
        out.write("b" * 9)
    keys.note_forgotten(["a" * 22, "c" * 22])
    assert keys.forgotten() == ["a" * 22, "c" * 22]


def test_a_program_takes_the_other_file(store: PlatformStore, dsn: str, keys: KeyFolder, connect: Connect) -> None:
    early, in_transaction = sealing(store.connection, keys.path), sealing(connect(autocommit=False), keys.path)
    assert keys.begun_next().begun_next().epoch == 2
    late = sealing(store.connection, keys.path)
    # the store has not begun the epoch whose file is there
    move(late, "d-1", "d@a")
    assert rotate(dsn, keys.path) == 2
    for each in (early, late):
        move(each, f"d-{id(each)}", "e@a")
    # its transaction is over, and the next one goes on
    assert in_transaction.sealer is not None
    (keys.path / "epoch-1.key").write_bytes(b"x" * 64)
    (keys.path / "epoch-1.key").chmod(0o600)
    with pytest.raises(KeyGone, match=rf"(?s)of epoch 1 .* are of epoch 2 .*newest files of {keys.path}"):
        move(in_transaction, "d-2", "f@a")
    in_transaction.connection.rollback()
    move(in_transaction, "d-2", "g@a")
    in_transaction.connection.commit()
    assert emails(early, "d-1", f"d-{id(early)}", f"d-{id(late)}", "d-2") == ["d@a", "e@a", "e@a", "g@a"]


def test_a_copy_of_the_folder_without_the_file(store: PlatformStore, dsn: str, keys: KeyFolder, tmp_path: Path) -> None:
    shutil.copytree(keys.path, tmp_path / "copy")
    copied = sealing(store.connection, tmp_path / "copy")
    rotate(dsn, keys.path)
    with pytest.raises(KeyGone, match=rf"(?s)are of epoch 2 .*newest files of {tmp_path / 'copy'}"):
        move(copied, "new", "a@a")
    assert type(emails(copied, PEOPLE[0])[0]) is Sealed
    with pytest.raises(InvalidSetting, match="does not fit the store"):
        rotate(dsn, tmp_path / "copy")
    shutil.copy(keys.path / "epoch-2.key", tmp_path / "copy")
    assert emails(copied, PEOPLE[0]) == [f"{PEOPLE[0]}@a"]
    move(copied, "new", "a@a")
    foreign = begun_folder(tmp_path / "foreign")
    for _ in range(2):
        foreign = foreign.begun_next()
        foreign.destroy_earlier()
    with pytest.raises(InvalidSetting, match="does not fit the store"):
        rotate(dsn, foreign.path)


@pytest.mark.parametrize("level", [None, REPEATABLE_READ])
def test_no_key_is_wrapped_by_an_ended_epoch(
    store: PlatformStore, dsn: str, keys: KeyFolder, connect: Connect, level: IsolationLevel | None
) -> None:
    maker, stale = (sealing(connect(autocommit=False), keys.path) for _ in range(2))
    maker.connection.isolation_level = stale.connection.isolation_level = level
    move(maker, "new", "new@a")
    stale.connection.execute("select 1 from event_store.deciders")
    epochs = KeyStore(connect())
    following = keys.begun_next()
    # the rotation waits for the key that is being made
    begins = start_blocked(store, epochs, lambda: epochs.begin_key_epoch(2, following.fingerprint))
    maker.connection.commit()
    begins.result(patience())
    for error in (psycopg.errors.SerializationFailure, KeyGone)[level is None :]:
        with pytest.raises(error):
            move(stale, "newer", "newer@a")
        stale.connection.rollback()
    move(stale, "newer", "newer@a")
    stale.connection.commit()
    assert rotate(dsn, keys.path) == 2
    assert emails(sealing(store.connection, keys.path), "new", "newer") == ["new@a", "newer@a"]


def test_writers_go_on_while_it_rotates(store: PlatformStore, dsn: str, keys: KeyFolder, connect: Connect) -> None:
    stop = Event()

    def write(number: int) -> list[str]:
        people, done = sealing(connect(), keys.path), list[str]()
        while not stop.is_set():
            move(people, f"w-{number}-{len(done)}", f"{len(done)}@a")
            done.append(f"w-{number}-{len(done)}")
        return done

    writers = [start(lambda number=number: write(number)) for number in range(8)]  # type: ignore[misc]
    try:
        for epoch in (2, 3):
            before = len(wrapped(store))
            wait_until(lambda: len(wrapped(store)) > before + 20, "they write")  # noqa: B023 - at once
            assert rotate(dsn, keys.path) == epoch
    finally:
        stop.set()
    people = sealing(store.connection, keys.path)
    for writer in writers:
        done = writer.result(patience())
        assert emails(people, *done) == [f"{number}@a" for number in range(len(done))]


@pytest.mark.parametrize("work", [emails, lambda people, person: move(people, person, "new@a")])
def test_a_rotation_between_a_key_and_its_file(
    store: PlatformStore,
    dsn: str,
    keys: KeyFolder,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[EventStore, str], object],
) -> None:
    people, unwrapped, rotations = sealing(store.connection, keys.path), KeyFolder.unwrapped, iter([1])

    def late(folder: KeyFolder, rows: Collection[StoredKey]) -> dict[str, bytes]:
        if next(rotations, None):
            rotate(dsn, folder.path)
        return unwrapped(folder, rows)

    monkeypatch.setattr(KeyFolder, "unwrapped", late)
    assert work(people, PEOPLE[0]) in ([f"{PEOPLE[0]}@a"], None)
    assert opened_folder(keys.path).epoch == 2


def test_a_program_that_notes_the_folder_meanwhile(
    store: PlatformStore, dsn: str, keys: KeyFolder, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, note = sealing(connect(autocommit=False), keys.path), KeyStore.note_holder
    store.connection.execute("update event_store_keys.holders set seen_at = seen_at - interval '1 hour'")
    move(program, "new", "new@a")

    def noted(rotating: KeyStore, folder: KeyFolder) -> None:
        note(rotating, folder)
        program.connection.commit()

    monkeypatch.setattr(KeyStore, "note_holder", noted)
    assert rotate(dsn, keys.path, wait_s=5) == 2
    assert [holder.epochs for holder in KeyStore(store.connection).key_holders()] == [[2]]


def test_a_standby_must_have_replayed_it(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    programs = pytestconfig.getoption("postgres")
    with own_server("store", programs=programs) as first, tempfile.TemporaryDirectory(prefix="wake_") as folder:
        second, dsn = Copy(Path(folder), programs), first.dsn("store")
        second.follow(first, synchronous=False)
        try:
            with (
                psycopg.connect(dsn, autocommit=True) as connection,
                psycopg.connect(second.dsn("postgres"), autocommit=True) as following,
            ):
                keys = begin(PlatformStore(connection), tmp_path / "keys")
                move(sealing(connection, keys.path), "c", "c@a")
                following.execute("select pg_wal_replay_pause()")
                wait_until(
                    lambda: value(following, "select pg_get_wal_replay_pause_state()") == "paused", "it replays nothing"
                )
                refused = refusal(MillraceError, lambda: rotate(dsn, keys.path, wait_s=0))
                assert (refused.detail, "epoch-1.key" in files(keys)) == (f"standby {second.directory.name}", True)
                following.execute("select pg_wal_replay_resume()")
                assert rotate(dsn, keys.path) == 2
                assert "epoch-1.key" not in files(keys)
        finally:
            second.stop()


def test_nothing_is_destroyed_too_early(store: PlatformStore, dsn: str, keys: KeyFolder) -> None:
    epochs = KeyStore(store.connection)
    refusal(MillraceError, lambda: epochs.end_key_epoch(1))
    following = keys.begun_next()
    epochs.begin_key_epoch(2, following.fingerprint)
    refusal(MillraceError, lambda: epochs.end_key_epoch(1))
    refusal(KeyGone, lambda: epochs.wrap_keys(keys, {}, 1))
    # a key that was forgotten meanwhile stays forgotten
    rows_given = epochs.wrap_keys(following, {}, 100)
    forget(store.connection, keys, f"customer:{PEOPLE[0]}")
    anew = {row.key_id: b"new" for row in rows_given}
    assert epochs.wrap_keys(following, anew, 100) == []
    assert len(wrapped(store)) == len(PEOPLE) - 1
    # what does not open destroys nothing
    with pytest.raises(InvalidSetting, match="cannot open key"):
        rotate(dsn, keys.path)
    assert "epoch-1.key" in files(keys)
