"""Masked and hashed columns: no path of a change or a row takes their values to the store."""

import hmac
from dataclasses import replace
from typing import Any

import pytest

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.quarantine import requeue
from millrace.capture.source.readiness import NotReady
from millrace.capture.store import CaptureStore
from millrace.capture.verify import verify
from millrace.errors import InvalidCapture
from tests.support.capturing.captured import Captured, declared
from tests.support.patience import patience

KEY = "a key of sixteen characters or more"
PEOPLE = CapturedTable("people", mask=("iban", "born"), hash=("email",), hash_key=lambda: KEY)
# values that the store must not hold
SECRETS = ("DE-secret", "DE-other", "1970-01-01", "1980-02-03", "ada@secret", "eve@secret", KEY)


def hashed(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), "sha256").hexdigest()


@pytest.fixture
def people(captured: Captured) -> Captured:
    captured.run(
        "create table people (id int primary key, name text, email text, iban text, born date, score numeric)",
        "insert into people values (1, 'ada', 'ada@secret', 'DE-secret', '1970-01-01', 1), (2, 'nobody', null, null, null, 2)",
    )
    return declared(captured, PEOPLE)


def records(captured: Captured) -> list[dict[str, Any]]:
    return sorted((row for row in captured.replayed()), key=lambda row: int(row["id"]))


def told(captured: Captured) -> list[str]:
    return captured.told(*SECRETS)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_rows_that_are_read_and_changes_say_the_same_and_no_secret(people: Captured, identity: str) -> None:
    people.run(f"alter table people replica identity {identity}")
    people.drain()
    first = {"id": 1, "name": "ada", "email": hashed("ada@secret"), "iban": "***", "born": "***", "score": 1}
    second = {"id": 2, "name": "nobody", "email": None, "iban": None, "born": None, "score": 2}
    assert records(people) == [first, second]
    people.run(
        "update people set score = 3 where id = 1",
        "update people set email = 'eve@secret', iban = 'DE-other', born = '1980-02-03' where id = 2",
        "update people set id = 4 where id = 2",
        "insert into people values (3, 'eve', 'ada@secret', 'DE-secret', '1970-01-01', 1)",
        "delete from people where id = 3",
        "insert into people values (5, 'eve', 'eve@secret', 'DE-secret', '1970-01-01', 1)",
    )
    people.drain()
    moved = {"id": 4, "name": "nobody", "email": hashed("eve@secret"), "iban": "***", "born": "***", "score": 2}
    fifth = {**first, "id": 5, "name": "eve", "email": hashed("eve@secret")}
    assert records(people) == [{**first, "score": 3}, moved, fifth]
    assert told(people) == []
    compared = people.verify(PEOPLE, repairs="a test")
    assert (compared.unchanged, compared.differing) == (3, 0)


def test_a_change_that_cannot_be_decoded_does_not_keep_its_message(people: Captured) -> None:
    people.drain()
    people.run(
        "insert into people values (7, 'far', 'eve@secret', 'DE-other', '1980-02-03', 'NaN'), (8, 'x', null, null, null, 1)",
        "alter table people alter score type text",
        'alter table people alter score type json using \'{"a": "\\u0000"}\'::json',
        "insert into people values (9, 'nul', 'eve@secret', 'DE-other', '1980-02-03', '{\"a\": \"\\u0000\"}')",
    )
    people.drain()
    waiting = CaptureStore(people.store).quarantined_changes("shop")
    assert waiting
    assert {change.raw for change in waiting} == {None}
    assert told(people) == []
    requeue(CaptureStore(people.store), people.capture, "a test")
    assert told(people) == []
    people.run("update people set score = '1'")
    people.drain()
    people.verify(PEOPLE, repairs="a test")
    assert CaptureStore(people.store).quarantined_changes("shop") == []
    assert told(people) == []


def test_a_masked_column_that_gets_another_name_is_told_under_neither(people: Captured) -> None:
    with people.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        people.run("alter table people rename iban to account")
        people.run("insert into people values (3, 'eve', 'eve@secret', 'DE-other', '1980-02-03', 1)")
        with pytest.raises(TableUnfit, match="has no column iban"):
            process.drain(budget_s=patience(), idle_s=0)
    assert told(people) == []
    with pytest.raises(NotReady, match=r"it has no column iban; there are id, name, email, account"):
        people.drain()
    mended = declared(people, replace(PEOPLE, mask=("account", "born")))
    mended.drain()
    mended.verify(mended.capture.tables[0], repairs="a test")
    assert [row["account"] for row in records(mended)] == ["***", None, "***"]
    assert told(people) == []


def test_another_mask_or_key_has_the_table_read_anew(people: Captured) -> None:
    people.drain()
    no_hash = replace(PEOPLE, mask=("iban", "born", "email"), hash=(), hash_key=None)
    for other in (replace(PEOPLE, mask=("iban",)), replace(PEOPLE, hash_key=lambda: KEY[::-1]), no_hash):
        changed = declared(people, other)
        changed.drain()
        compared = verify(people.dsn, changed.capture, other)
        assert (compared.unchanged, compared.differing) == (2, 0)
        assert changed.drain().backfilled == 0


def no_key() -> str:
    raise KeyError("HASH_KEY")


def test_without_a_hash_key_or_a_column_to_hide_nothing_is_captured(people: Captured) -> None:
    hashed_by: tuple[Any, ...] = (no_key, lambda: "short", lambda: None)
    no_keys = r"hash_key returns (no key: (KeyError\('HASH_KEY'\)|AttributeError)|5 bytes)"
    for table, error, said in (
        (
            replace(PEOPLE, mask=("ibn",)),
            NotReady,
            r"it has no column ibn; there are id, name, email, iban, born, score",
        ),
        (replace(PEOPLE, mask=("id",)), NotReady, r"column id belongs to its key, which is neither masked nor hashed"),
        *[(replace(PEOPLE, hash_key=key), InvalidCapture, no_keys) for key in hashed_by],
    ):
        with pytest.raises(error, match=said):
            declared(people, table).drain()
    assert told(people) == []
