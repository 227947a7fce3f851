"""Forgetting people: what the store and the folder say after each kill, and what an operator is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import psycopg
import pytest
from pydantic import BaseModel

from millrace.errors import InvalidSetting, Malformed, UnknownSubject
from millrace.event_schemas import event, register_events
from millrace.event_store.key_rotation import KeyStore, folder_of
from millrace.event_store.platform import PlatformStore
from millrace.operations.privacy import backup_keys, forget, init, problems
from millrace.personal import Forgotten, Personal, Sealer
from millrace.personal.folder import opened_folder
from millrace.processes import only_one
from tests.support.factories import rows, start
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT


@event(decider="customer")
class CustomerMoved(BaseModel):
    """A customer moved."""

    customer_id: str
    email: Annotated[str, Personal(of="customer_id", kind="customer")]


# each call runs in a fork that kills itself before the given line of ours; this process has no threads
PROGRAM = """
import os, signal, sys
from itertools import count
from pathlib import Path
from millrace.operations import privacy
from millrace.personal import folder, sealer
from millrace.postgres.connecting import connect
ours = {privacy.__file__, folder.__file__}
work, dsn, keys = sys.argv[1], sys.argv[2], Path(sys.argv[3])
def call():
    store = privacy.KeyStore(connect(dsn))
    privacy.init(store, keys) if work == "init" else privacy.forget(store, keys, "customer:c-7", "asked")
def killed_before(last):
    lines = count(1)
    def trace(frame, event, _):
        if frame.f_code.co_filename in ours and event == "line" and next(lines) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    child = os.fork()
    if not child:
        try:
            sys.settrace(trace)
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for line in count(1):
    ended = killed_before(line)
    assert ended in (0, -signal.SIGKILL), ended
    print(line, flush=True)
    sys.stdin.readline()
    if not ended:
        break
"""


def kills(work: str, dsn: str, keys: Path, look: Callable[[], object]) -> list[object]:
    """Do the work again and again, killed before each of its lines in turn; return what is seen after each kill."""
    seen = []
    command = [sys.executable, "-c", PROGRAM, work, dsn, str(keys)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=-1, stdout=-1, text=True) as running:
        assert running.stdin
        assert running.stdout
        while running.stdout.readline():
            seen.append(look())
            running.stdin.write("\n")
            running.stdin.flush()
        assert running.wait(10 * patience()) == 0
    return seen


def readmit(privacy: KeyStore, keys: Path, subject: str, reason: str) -> str | None:
    return privacy.readmit_subject(folder_of(privacy, keys).mac(subject), reason)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def privacy(store: PlatformStore) -> KeyStore:
    return KeyStore(store.connection)


@pytest.fixture
def sealing(store: PlatformStore, privacy: KeyStore, keys: Path) -> PlatformStore:
    """Return a store with a sealed value of customer c-7."""
    store.sealer = Sealer(init(privacy, keys))
    register_events(store, [CustomerMoved])
    store.append("customer", "c-7", CustomerMoved(customer_id="c-7", email="eve@example.com"))
    return store


def reader(sealing: PlatformStore, keys: Path) -> PlatformStore:
    """Return a store that holds no key yet."""
    return PlatformStore(sealing.connection, sealer=Sealer.from_folder(keys))


def test_after_any_kill_a_key_that_is_gone_is_in_the_list(sealing: PlatformStore, dsn: str, keys: Path) -> None:
    def look() -> tuple[int, int, int]:
        ((gone,),) = rows(sealing.connection, "select count(forgotten_at) from event_store_keys.subject_keys")
        found = keys / "forgotten.list"
        ((told,),) = rows(
            sealing.connection, "select count(*) from event_store.events where event = 'subject_forgotten'"
        )
        return gone, len(found.read_text().split()) if found.exists() else 0, told

    seen = kills("forget", dsn, keys, look)
    # untouched; in the list only; gone
    assert list(dict.fromkeys(seen)) == [(0, 0, 0), (0, 1, 0), (1, 1, 1)]
    (name,) = (keys / "forgotten.list").read_text().split()
    assert rows(sealing.connection, "select key_id from event_store_keys.subject_keys") == [(name,)]


def test_an_init_that_is_killed_anywhere_is_ended_by_the_next(privacy: KeyStore, dsn: str, keys: Path) -> None:
    def look() -> tuple[bool, bool]:
        return (keys / "epoch-1.key").exists(), bool(privacy.key_counts())

    assert list(dict.fromkeys(kills("init", dsn, keys, look))) == [(False, False), (True, False), (True, True)]
    assert problems(privacy, keys) == []
    assert sorted(file.name for file in keys.iterdir()) == [".lock", "epoch-1.key", "subjects.key"]


def test_of_two_that_init_at_once_the_second_takes_the_keys_of_the_first(privacy: KeyStore, keys: Path) -> None:
    keys.mkdir()
    with only_one(keys / ".lock"):
        second = start(lambda: init(privacy, keys))
        inode = f":{(keys / '.lock').stat().st_ino} "
        wait_until(lambda: re.search(f"->.*{inode}", Path("/proc/locks").read_text()), "the second waits")
        for name, size in {"subjects.key": 32, "epoch-1.key": 64}.items():
            (keys / name).write_bytes(bytes(size))
            (keys / name).chmod(0o600)
    assert second.result(patience()).fingerprint == sha256(bytes(96)).hexdigest()


def test_both_requests_are_audited_by_the_name_of_the_key(
    sealing: PlatformStore, privacy: KeyStore, keys: Path
) -> None:
    gone, again = (forget(privacy, keys, "customer:c-7", reason) for reason in ("request 8", "again"))
    assert (gone, gone.epoch) == (again, 1)
    assert readmit(privacy, keys, "customer:c-7", "is back") == gone.key_id
    assert readmit(privacy, keys, "customer:c-7", "is back") is None
    assert (keys / "forgotten.list").read_text().split() == [gone.key_id]
    audited = (
        "select operation, reason, detail from event_store.audit_log where operation ~ 'key|subject' order by audit_id"
    )
    assert rows(sealing.connection, audited) == [
        ("begin_key_epoch", None, {"epoch": 1}),
        ("forget_subject", "request 8", {"key_id": gone.key_id}),
        ("readmit_subject", "is back", {"key_id": gone.key_id}),
    ]
    assert "c-7" not in str(rows(sealing.connection, "select t::text from event_store_keys.subject_keys t"))


def test_an_owner_forgets_and_a_login_that_only_seals_does_not(sealing: PlatformStore, keys: Path) -> None:
    with logins(sealing.connection) as login:
        sealer = login("event_store_personal", "event_store_writer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            forget(KeyStore(sealer), keys, "customer:c-7", "asked")
        assert not (keys / "forgotten.list").exists()
        gone = forget(KeyStore(login("event_store_owner")), keys, "customer:c-7", "asked")
    assert [each.data["email"] for each in reader(sealing, keys).read("customer", "c-7")] == [
        {"$sealed": f"1.{gone.key_id}.0.0"}
    ]


def test_a_folder_that_cannot_be_written_forgets_no_key(sealing: PlatformStore, privacy: KeyStore, keys: Path) -> None:
    (keys / "forgotten.list").mkdir()
    with pytest.raises(InvalidSetting, match=r"cannot be written: Is a directory\.\nNothing was changed in the store"):
        forget(privacy, keys, "customer:c-7", "asked")
    (read,) = reader(sealing, keys).read("customer", "c-7")
    assert read.data["email"] == "eve@example.com"


def test_another_folder_and_no_person_are_named(
    sealing: PlatformStore, privacy: KeyStore, keys: Path, tmp_path: Path
) -> None:
    for subject, error in {"customer:c-8": UnknownSubject, "c-7": Malformed, "customer:a@b.example": Malformed}.items():
        with pytest.raises(error):
            forget(privacy, keys, subject, "asked")
    other = tmp_path / "other"
    forgetting = partial(forget, subject="customer:c-7", reason="asked")
    readmitting = partial(readmit, subject="customer:c-7", reason="is back")
    calls: tuple[Callable[[KeyStore, Path], object], ...] = (init, forgetting, readmitting)
    for call in calls:
        with pytest.raises(InvalidSetting, match="cannot be read: No such file"):
            call(privacy, other)
    assert not other.exists()
    other.mkdir()
    with pytest.raises(InvalidSetting, match=r"other has no file epoch-1\.key"):
        init(privacy, other)
    for name in ("subjects.key", "epoch-1.key"):
        (other / name).write_bytes(os.urandom((keys / name).stat().st_size))
        (other / name).chmod(0o600)
    for call in calls:
        with pytest.raises(InvalidSetting, match="other does not fit the store: it is at epoch 1 with fingerprint"):
            call(privacy, other)
    assert [each.data["email"] for each in reader(sealing, keys).read("customer", "c-7")] == ["eve@example.com"]


def test_a_key_of_the_list_that_lives_is_a_problem(sealing: PlatformStore, privacy: KeyStore, keys: Path) -> None:
    assert problems(privacy, keys) == []
    ((name,),) = rows(sealing.connection, "select key_id from event_store_keys.subject_keys")
    # as a crash may leave it, then as a `forget` does that is killed before its commit
    (keys / "forgotten.list").write_text("AAA")
    init(privacy, keys).note_forgotten([name])
    init(privacy, keys).note_forgotten([name])
    assert (keys / "forgotten.list").read_text().split() == ["AAA", name]
    (problem,) = problems(privacy, keys)
    assert problem.startswith(f"1 keys in {keys}/forgotten.list live in the store")
    forget(privacy, keys, "customer:c-7", "asked")
    assert problems(privacy, keys) == []


def test_a_copy_of_the_folder_keeps_what_was_forgotten_with_it(
    sealing: PlatformStore, privacy: KeyStore, keys: Path, tmp_path: Path
) -> None:
    backup_keys(privacy, keys, tmp_path / "copy")
    gone = forget(privacy, tmp_path / "copy", "customer:c-7", "asked")
    backup_keys(privacy, keys, tmp_path / "copy")
    for folder in (keys, tmp_path / "copy"):
        assert opened_folder(folder).forgotten() == [gone.key_id]
    assert type(next(reader(sealing, keys).read("customer", "c-7")).data["email"]) is Forgotten


@pytest.mark.parametrize("spoil", [lambda file: file.write_bytes(b"\xff\n"), Path.mkdir])
def test_a_list_that_cannot_be_read_is_named(
    sealing: PlatformStore, privacy: KeyStore, keys: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(keys / "forgotten.list")
    with pytest.raises(InvalidSetting, match=rf"{keys}.* cannot be (read|written)"):
        forget(privacy, keys, "customer:c-7", "asked")
    assert f"{keys}/forgotten.list" in problems(privacy, keys)[0]
    assert next(reader(sealing, keys).read("customer", "c-7")).data["email"] == "eve@example.com"
