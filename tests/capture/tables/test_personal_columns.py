"""Personal columns: sealed on each path to the store, for their person, also once that one is forgotten."""

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.capture.declaration import CapturedTable
from millrace.capture.quarantine import requeue
from millrace.capture.source.readiness import NotReady
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore
from millrace.errors import ChangesDiffer, InvalidSetting, KeyGone, Malformed
from millrace.personal import Forgotten, Personal, Sealer
from millrace.personal.folder import begun_folder
from tests.support.capturing.captured import Captured, declared, killed_at
from tests.support.customers import BEGIN, FORGET, READMIT
from tests.support.patience import patience

PEOPLE = CapturedTable("people", personal={"email": "id", "note": Personal(of="owner", kind="customer")})
MADE = "create table people (id int primary key, owner text, name text, email text, note json, score numeric)"
SECRETS = ("ada@secret", "eve@secret", "DE-secret", "DE-other")
FIRST = {"id": 1, "owner": "c-7", "name": "ada", "email": "ada@secret", "note": {"iban": "DE-secret"}, "score": 1}
SECOND = {"id": 2, "owner": None, "name": "none", "email": None, "note": None, "score": 2}


@pytest.fixture
def keys(captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = begun_folder(tmp_path / "keys")
    captured.store.execute(BEGIN, (folder.epoch, folder.fingerprint))
    monkeypatch.setenv("MILLRACE_KEYS", str(folder.path))
    return folder.path


@pytest.fixture
def people(captured: Captured, keys: Path) -> Captured:
    assert keys.exists()
    captured.run(
        MADE,
        """insert into people values
             (1, 'c-7', 'ada', 'ada@secret', '{"iban": "DE-secret"}', 1), (2, null, 'none', null, null, 2)""",
    )
    return declared(captured, PEOPLE)


def to(keys: Path, people: Captured, call: Any, subject: str = "people:1") -> None:  # noqa: ANN401 - a literal
    people.store.execute(call, (Sealer.from_folder(keys).folder.mac(subject),))


def opened(people: Captured, keys: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the store as a program reads them that comes anew, by their ids."""
    found = CaptureStore(people.store, sealer=Sealer.from_folder(keys)).open_rows(rows)
    return sorted(found, key=lambda row: int(row["id"]))


def records(people: Captured, keys: Path) -> list[dict[str, Any]]:
    return opened(people, keys, people.replayed())


def emails(people: Captured) -> list[Any]:
    """Return the addresses of the first row's changes, as they are stored."""
    return [change["record"]["email"] for change in people.changes() if change["record_pk"] == "[1]"]


@pytest.mark.parametrize("identity", ["default", "full"])
def test_rows_that_are_read_and_changes_are_sealed_alike(people: Captured, keys: Path, identity: str) -> None:
    people.run(f"alter table people replica identity {identity}")
    people.drain()
    assert records(people, keys) == [FIRST, SECOND]
    people.run(
        "update people set score = 3 where id = 1",
        """update people set owner = 'c-8', email = 'eve@secret', note = '{"iban": "DE-other"}' where id = 2""",
        "update people set id = 4, owner = 'c-9' where id = 2",
        "insert into people select 3, owner, name, email, note, score from people where id = 1",
        "update people set email = 'eve@secret' where id = 3",
        "delete from people where id = 3",
    )
    people.drain()
    fourth = {**SECOND, "id": 4, "owner": "c-9", "email": "eve@secret", "note": {"iban": "DE-other"}}
    assert records(people, keys) == [{**FIRST, "score": 3}, fourth]
    assert people.told(*SECRETS) == []
    first, second = emails(people)
    assert first == second
    assert (before := [c["changes"]["email"] for c in people.changes() if (c["changes"] or {}).get("email")]) or (
        identity == "default"
    )
    assert [row["email"] for row in opened(people, keys, [{"id": 3, "email": each} for each in before])] == [
        "ada@secret" for _ in before
    ]
    compared = people.verify(PEOPLE)
    assert (compared.unchanged, compared.differing) == (2, 0)


def test_columns_of_one_person_are_those_of_each_kind_and_id(people: Captured, keys: Path) -> None:
    people.drain()
    to(keys, people, FORGET, "customer:c-7")
    (first, _) = records(people, keys)
    assert (first["email"], type(first["note"])) == ("ada@secret", Forgotten)


def test_a_forgotten_persons_rows_go_on_without_content(people: Captured, keys: Path) -> None:
    people.drain()
    to(keys, people, FORGET)
    compared = people.verify(PEOPLE, repairs="a test")
    assert (compared.unchanged, compared.differing) == (2, 0)
    people.restart("a test")
    assert people.drain().unchanged == 2
    people.run("update people set score = 3, email = 'eve@secret' where id = 1")
    people.drain()
    (kept, empty) = (each["$sealed"].split(".") for each in emails(people))
    assert (empty[1:], len(kept[3]) > 1) == ([kept[1], "0", "0"], True)
    assert records(people, keys)[0]["score"] == 3
    to(keys, people, READMIT)
    assert people.verify(PEOPLE).differing == 0


def test_a_person_that_comes_back_has_a_new_key_at_once(people: Captured, keys: Path) -> None:
    people.run("update people set email = 'eve@secret' where id = 1")
    with people.process() as process:

        def next_email() -> Any:  # noqa: ANN401 - what the store has
            people.run("update people set score = score + 1 where id = 1")
            process.drain(budget_s=patience(), idle_s=0)
            return records(people, keys)[0]["email"]

        # the process keeps the key from the second change on
        assert [next_email() for _ in range(2)] == ["eve@secret", "eve@secret"]
        for _ in range(2):
            to(keys, people, FORGET)
            to(keys, people, READMIT)
            assert next_email() == "eve@secret"
        to(keys, people, FORGET)
        assert not next_email()
        to(keys, people, READMIT)
        assert next_email() == "eve@secret"


@pytest.mark.parametrize("then", [(), (FORGET,), (FORGET, READMIT)])
def test_changes_that_come_again_count_as_the_same(
    people: Captured, keys: Path, monkeypatch: pytest.MonkeyPatch, then: tuple[Any, ...]
) -> None:
    people.drain()
    people.run("update people set email = 'eve@secret' where id = 1")
    killed_at(people, monkeypatch, SlotStream, "advance")
    for call in then:
        to(keys, people, call)
    report = people.drain()
    assert (report.replayed, report.stored, report.emitted) == (1, 0, 1)


def test_another_value_that_comes_again_is_no_repetition(
    people: Captured, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.drain()
    people.run("update people set score = 4 where id = 1")
    killed_at(people, monkeypatch, SlotStream, "advance")
    to(keys, people, FORGET)
    people.store.execute("update event_store.wal_events set data = jsonb_set(data, '{record,score}', '5')")
    with pytest.raises(ChangesDiffer, match="another data"):
        people.drain()


def test_a_row_without_the_id_of_a_person_waits_without_its_value(people: Captured, keys: Path) -> None:
    people.drain()
    odd = ("null", "'eve@secret'", "'c 7'", "''")
    for number, owner in enumerate(odd, 10):
        people.run(f"""insert into people values ({number}, {owner}, 'x', null, '{{"iban": "DE-other"}}', 1)""")
    people.run("insert into people values (20, null, 'x', 'eve@secret', null, 1)")
    assert people.drain().quarantined == len(odd)
    waiting = CaptureStore(people.store).quarantined_changes("shop")
    why = "column note is personal, and column owner has no id of a person: it is null, has @ or a blank, or is not in the log"
    assert {(change.fault, change.raw, change.data_json) for change in waiting} == {(why, None, None)}
    assert people.told(*SECRETS) == []
    people.restart("a test")
    people.drain()
    assert people.told(*SECRETS) == []
    people.run(f"update people set owner = 'c-8' where id < {10 + len(odd)}")
    people.drain()
    people.verify(PEOPLE, repairs="a test")
    assert CaptureStore(people.store).quarantined_changes("shop") == []
    assert [row["note"] for row in records(people, keys)][2:] == [{"iban": "DE-other"}] * len(odd) + [None]


def test_the_fault_of_a_personal_value_does_not_quote_it(people: Captured) -> None:
    people.run("alter table people replica identity full")
    people.drain()
    people.run(
        """insert into people values (3, 'c-8', 'x', 'eve@secret', '{"DE-other": 1e9999999}', 1)""",
        "update people set note = null where id = 3",
    )
    assert people.drain().quarantined == 2
    waiting = CaptureStore(people.store).quarantined_changes("shop")
    said = ["column note has no JSON form, and is not shown: it is personal", "column note before the change has no"]
    assert [(change.fault or "")[: len(text)] for change, text in zip(waiting, said, strict=True)] == said
    assert people.told(*SECRETS) == []


def test_rows_without_a_key_are_sealed_too(captured: Captured, keys: Path) -> None:
    captured.run("create table visits (person int, page text)")
    visits = CapturedTable("visits", key=(), personal={"page": "person"})
    keyless = declared(captured, visits, actions=("insert", "truncate"))
    keyless.drain()
    captured.run("insert into visits values (1, 'DE-secret'), (1, 'DE-secret')")
    keyless.drain()
    first, second = (change["record"] for change in keyless.changes())
    assert first["page"]["$sealed"].split(".")[2] != second["page"]["$sealed"].split(".")[2]
    found = CaptureStore(captured.store, sealer=Sealer.from_folder(keys)).open_rows([first, second])
    assert found == [{"person": 1, "page": "DE-secret"}] * 2


def test_what_waits_from_before_a_column_was_personal_is_sealed(people: Captured, keys: Path) -> None:
    plain = declared(people, CapturedTable("people"))
    plain.drain()
    people.run("""insert into people values (3, 'c-8', 'x', 'eve@secret', '{"a": "\\u0000"}', 1)""")
    assert plain.drain().quarantined == 1
    (waiting,) = CaptureStore(people.store).quarantined_changes("shop")
    assert waiting.raw is not None
    # a later version of the decoder may read it
    people.store.execute(
        "update event_store.quarantined_changes set raw = %s", (waiting.raw.replace(b"\\u0000", b"\\u0041"),)
    )
    people.drain()
    assert requeue(CaptureStore(people.store), people.capture, "a test").requeued == 1
    (found,) = (change["record"] for change in people.changes() if change["record_pk"] == "[3]")
    assert opened(people, keys, [found])[0]["email"] == "eve@secret"
    assert json.dumps(found).count("$sealed") == 2


@pytest.mark.parametrize(
    ("lacks", "error", "said"),
    [
        ("folder", InvalidSetting, "MILLRACE_KEYS is not set"),
        ("its folder", KeyGone, "the keys are of epoch 1 with fingerprint"),
        ("epoch", Malformed, "the store has no epoch of keys"),
        ("column", NotReady, "it has no column mail, whose; there are id, owner"),
    ],
)
def test_where_a_column_cannot_be_sealed_no_capture_begins(
    people: Captured, keys: Path, monkeypatch: pytest.MonkeyPatch, lacks: str, error: type[Exception], said: str
) -> None:
    match lacks:
        case "folder":
            monkeypatch.delenv("MILLRACE_KEYS")
        case "its folder":
            monkeypatch.setenv("MILLRACE_KEYS", str(begun_folder(keys / "other").path))
        case "epoch":
            people.store.execute("delete from event_store_keys.epochs")
        case _:
            people = declared(people, CapturedTable("people", personal={"mail": "whose"}))
    with pytest.raises(error, match=said):
        people.drain()
    slots = "select from pg_replication_slots where database = current_database()"
    assert people.source.connection.execute(slots.encode()).fetchall() == []
