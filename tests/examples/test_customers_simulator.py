"""The simulated customer database: bounded, repeatable; and its place."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.errors import Unreachable
from millrace.examples.shop import customers_simulator as crm_simulator
from millrace.examples.shop.customers import crm_dsn, make_crm
from millrace.examples.shop.customers_simulator import simulate_crm
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.sources import Source, new_source
from tests.support.factories import rows, value

__all__ = ["new_source"]


@pytest.fixture
def crm(new_source: Callable[[], Source]) -> Source:
    return new_source()


def run(dsn: str, changes: int, seed: int | None = 1) -> int:
    return simulate_crm(dsn, rate=None, changes=changes, seed=seed, stop=threading.Event())


def customers(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return rows(connection, "select customer_id, name, email, city, newsletter from customers order by customer_id")


def test_rows_come_change_and_go_as_often_as_was_asked_for(crm: Source) -> None:
    make_crm(crm.dsn)
    crm.listen()
    assert run(crm.dsn, 200) == 200
    done = [type(message).__name__ for message in crm.messages()]
    assert done.count("Commit") == 200
    assert min(done.count(kind) for kind in ("Insert", "Update", "Delete")) > 10
    # some transactions update a row twice
    assert done.count("Insert") + done.count("Update") + done.count("Delete") > 200


def test_a_seed_repeats_the_course_on_an_empty_table(new_source: Callable[[], Source]) -> None:
    first, second, other = new_source().dsn, new_source().dsn, new_source().dsn
    for dsn, seed in ((first, 1), (second, 1), (other, 2)):
        run(dsn, 150, seed)
    assert customers(first) == customers(second) != customers(other)


def test_there_are_never_more_customers_than_a_bound(crm: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crm_simulator, "MOST_CUSTOMERS", 5)
    run(crm.dsn, 300)
    assert 0 < len(customers(crm.dsn)) <= 5


def test_a_table_that_is_there_is_gone_on_with(crm: Source) -> None:
    run(crm.dsn, 10)
    crm.run("alter table customers add column note text")
    assert run(crm.dsn, 10) == 10
    assert value(crm.connection, "select relreplident::text from pg_class where relname = 'customers'") == "f"


def test_where_the_customers_are(postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_DSN", raising=False)
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    with pytest.raises(Unreachable, match=r"(?s)no customer database.*MILLRACE_CRM_DSN"):
        crm_dsn()
    (tmp_path / "postgres").symlink_to(postgres.directory)
    assert crm_dsn().startswith("postgresql://owner_of_crm@/crm?host=")
    monkeypatch.setenv("MILLRACE_CRM_DSN", "postgresql://somewhere/else")
    assert crm_dsn() == "postgresql://somewhere/else"
