"""A filled store, and an empty one to restore it into."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.backup.backup import backup
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.factories import pump, set_clock
from tests.support.filled_store import fill


@pytest.fixture
def new_target(postgres: EmbeddedPostgres, spares: Callable[[], str]) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(spares())
        return postgres.dsn(made[-1])

    yield make
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        for name in made:
            admin.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def target(new_target: Callable[[], str]) -> str:
    return new_target()


@pytest.fixture
def restored(target: str) -> Iterator[PlatformStore]:
    with psycopg.connect(target, autocommit=True) as connection:
        yield PlatformStore(connection)


@pytest.fixture
def filled(store: PlatformStore) -> PlatformStore:
    """Fill a store: some events unsequenced, views of both modes, leases and locks in all states, dead letters."""
    fill(store.connection)
    store.register_view("parked", "-infinity", max_attempts=1)
    pump(store, "parked")
    (event, *_) = store.lease_events("parked", 1)
    store.fail_event("parked", event.decider_id, event.offset, 'no "customer",\n\\. \\N ü', event.lease_token)
    store.retry_dead_letters("parked", reason="")
    (event, *_) = store.lease_events("parked", 1)
    store.fail_event("parked", event.decider_id, event.offset, "again", event.lease_token)
    store.enable_view("parked", enabled=False)
    set_clock(store.connection, "")
    return store


@pytest.fixture
def saved(filled: PlatformStore, dsn: str, tmp_path: Path) -> Path:
    assert filled
    backup(dsn, tmp_path / "saved")
    return tmp_path / "saved"
