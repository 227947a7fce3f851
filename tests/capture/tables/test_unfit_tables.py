"""A table that stops fitting its declaration while it is followed: no row counts as gone, other tables continue."""

from contextlib import suppress
from dataclasses import replace

import pytest

from millrace.capture import backfill
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.changed_rows import TableUnfit
from tests.support.capturing.captured import Captured, did, left
from tests.support.capturing.following import followed
from tests.support.capturing.two_tables import GOOD, both
from tests.support.patience import patience, wait_until

MADE = "create table {t} (id int primary key, name text, iban text, email text, code int not null unique, n int)"
FULL = "; alter table {t} replica identity full"
FILL = "insert into {t} select n, 'a' || n, 'secret' || n, 'mail' || n, 100 + n, n from generate_series(1, 4) n"
CHANGE = "update {t} set n = n + 10 where n = 1; delete from {t} where n = 2"
HASH_KEY = "a key of sixteen characters or more"

# a declaration, the DDL of its table, the change, its undoing, and the reported problem
UNFIT: dict[str, tuple[CapturedTable, str, str, str, str]] = {
    "masked": (
        CapturedTable("masked", mask=("iban",)), MADE,
        "alter table {t} drop column iban", "alter table {t} add iban text", "it has no column iban",
    ),
    "unmasked": (
        CapturedTable("unmasked", mask=("iban",)), MADE + FULL,
        "alter table {t} rename iban to account", "alter table {t} rename account to iban", "it has no column iban",
    ),
    "hashed": (
        CapturedTable("hashed", hash=("email",), hash_key=lambda: HASH_KEY), MADE,
        "alter table {t} drop column email", "alter table {t} add email text", "it has no column email",
    ),
    "chosen": (
        CapturedTable("chosen", columns=("id", "name", "code")), MADE,
        "alter table {t} rename name to label", "alter table {t} rename label to name", "it has no column name",
    ),
    "filtered": (
        CapturedTable("filtered", where="name <> 'nobody'"), MADE + FULL,
        "alter table {t} rename name to label", "alter table {t} rename label to name", "where cannot be used",
    ),
    "keyed": (
        CapturedTable("keyed", key=("code",)), MADE.replace("int primary key", "int") + FULL,
        "alter table {t} rename code to number", "alter table {t} rename number to code", "it has no column code",
    ),
}  # fmt: skip
# a change of the key in one transaction with a change of a row; the table still has a key
REKEYED = {
    "renamed": "alter table {t} rename id to number",
    "replaced": "alter table {t} drop constraint {t}_pkey, add primary key (code)",
    "widened": "alter table {t} drop constraint {t}_pkey, add primary key (id, code)",
    "dropped": "alter table {t} drop column id, add primary key (code)",
    "indexed": "alter table {t} replica identity using index {t}_code_key",
    "exchanged": "alter table {t} rename id to x; alter table {t} rename code to id; alter table {t} rename x to code",
}


def made(captured: Captured) -> Captured:
    """Return the source with all of these tables captured beside an unchanged one."""
    captured = both(captured)
    for name in REKEYED:
        do(captured, name, MADE, FILL)
    for name, (_, how, *_) in UNFIT.items():
        do(captured, name, how, FILL)
    tables = (GOOD, *(table for table, *_ in UNFIT.values()), *map(CapturedTable, REKEYED))
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables))


def do(captured: Captured, name: str, *statements: str) -> None:
    """Execute the statements in one transaction."""
    with captured.source.connection.transaction():
        for statement in statements:
            captured.run(statement.replace("{t}", name))


def goes_on(captured: Captured) -> None:
    captured.run("insert into good select max(id) + 1, 'after' from good")
    wait_until(lambda: left(captured, "good") == captured.table("good"), "the others are captured")


def differing(captured: Captured) -> list[str]:
    """Return the tables that differ from their events."""
    captured.drain()
    return [t.name for t in captured.capture.tables if captured.verify(t).differing]


def nothing_is_lost(captured: Captured) -> None:
    assert (captured.info().gaps, captured.info().quarantined, captured.info().held) == (0, 0, 0)
    told = captured.rows("select data from event_store.events where data::text ~ 'secret' and decider ~ 'masked'")
    assert told == []


def test_a_follower_stops_it_at_the_first_change_and_ends_no_row(captured: Captured) -> None:
    captured = made(captured)
    with followed(captured):
        before = {name: left(captured, name) for name in UNFIT}
        for name, (_, _, breaks, _, _) in UNFIT.items():
            do(captured, name, breaks, CHANGE)
        goes_on(captured)
        wait_until(lambda: captured.info().tables_stopped == len(UNFIT), "all are stopped")
        goes_on(captured)
    assert {name: left(captured, name) for name in UNFIT} == before
    said = captured.problems()
    for name, (*_, why) in UNFIT.items():
        assert [each for each in said if f"table public.{name} is stopped" in each and why in each] != [], (name, said)
    nothing_is_lost(captured)
    for name, (_, _, _, mends, _) in UNFIT.items():
        do(captured, name, mends)
    assert differing(captured) == []
    assert captured.info().tables_stopped == 0
    nothing_is_lost(captured)


@pytest.mark.parametrize("name", ["unmasked", "filtered", "keyed", "chosen"])
def test_a_table_that_did_not_fit_for_a_while_is_read_anew(captured: Captured, name: str) -> None:
    captured = made(captured)
    _, _, breaks, mends, _ = UNFIT[name]
    with followed(captured):
        do(captured, name, breaks, CHANGE, mends, "delete from {t} where n = 3")
        goes_on(captured)
    assert differing(captured) == []
    do(captured, name, breaks)
    do(captured, name, "update {t} set n = n + 10 where n = 4")
    do(captured, name, mends)
    # a change that no process followed ends at most one run
    with suppress(TableUnfit):
        captured.drain()
    assert differing(captured) == []
    nothing_is_lost(captured)


def test_a_key_that_changes_in_one_transaction_with_a_change_is_followed(captured: Captured) -> None:
    captured = made(captured)
    with followed(captured):
        for name, breaks in REKEYED.items():
            do(captured, name, breaks, CHANGE)
        goes_on(captured)
        for name in REKEYED:
            do(captured, name, "update {t} set n = n + 10 where n = 3")
        goes_on(captured)
    assert differing(captured) == []
    nothing_is_lost(captured)


@pytest.mark.parametrize("name", ["chosen", "filtered"])
def test_columns_that_exchange_their_names_count_by_the_new_ones(captured: Captured, name: str) -> None:
    captured = made(captured)
    do(captured, name, "insert into {t} values (5, 'nobody', '', 'some', 105, 5), (6, 'some', '', 'nobody', 106, 6)")
    with followed(captured):
        names = (("name", "x"), ("email", "name"), ("x", "email"))
        exchange = "; ".join(f"alter table {name} rename {one} to {other}" for one, other in names)
        do(captured, name, exchange, CHANGE)
        goes_on(captured)
        do(captured, name, "update {t} set name = 'other' where n = 3")
        do(captured, name, "update {t} set name = 'nobody', email = 'x' where n = 4")
        goes_on(captured)
    assert differing(captured) == []
    nothing_is_lost(captured)


def test_a_key_of_another_type_ends_no_row_that_is_unread(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numbers, 9 is before 10; as texts, behind it."""
    monkeypatch.setattr(backfill, "CHUNK", 1)
    captured.run("insert into items select n, 'a' from generate_series(8, 12) n")
    captured.drain()
    captured.run("alter table items add more int default 1")
    with captured.process() as process:
        while captured.value("select max(backfill_key) from event_store.captured_tables") != '["9"]':
            process.store()
            process.emit()
            process.backfill(process.emit)
        captured.run("alter table items alter id type text")
        with pytest.raises(TableUnfit, match="its key is of another type"):
            process.drain(budget_s=patience(), idle_s=patience())
    assert did(captured) == []
    captured.drain()
    assert len(left(captured, "items")) == 5
