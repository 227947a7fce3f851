"""Versions of a read model: declared, serving, built from the archive, dropped."""

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from millrace.read_models.stored.store import ModelVersion, ReadModelStore, Version
from tests.support.factories import Connect, rows, start, wait_blocked
from tests.support.patience import patience


@pytest.fixture
def models(store: PlatformStore) -> ReadModelStore:
    """Return a store with read model `m`: version 1 serves, version 2 is being built."""
    models = ReadModelStore(store.connection)
    models.declare_version("m", 1, "orders", "one", True, [])
    models.declare_version("m", 2, "orders_v2", "two", False, [1, 3, 5])
    models.declare_version("n", 1, "invoices", "one", True, [])
    return models


def test_versions_are_listed_the_oldest_first_each_with_its_view(models: ReadModelStore) -> None:
    one, two = Version(1, "orders", "one", True, []), Version(2, "orders_v2", "two", False, [1, 3, 5])
    assert models.model_versions("m") == [one, two]
    assert models.model_versions("unknown") == []
    assert models.version_of_view("orders_v2") == ModelVersion("m", 2)
    assert models.version_of_view("unknown") is None
    with pytest.raises(psycopg.errors.UniqueViolation):
        models.declare_version("other", 1, "orders", "one", True, [])


def test_one_version_serves_and_a_dropped_one_is_gone_but_no_other(models: ReadModelStore) -> None:
    models.serve_version("m", 2)
    assert [(v.version, v.serves) for v in models.model_versions("m")] == [(1, False), (2, True)]
    models.drop_version("m", 1)
    assert [v.version for v in models.model_versions("m")] == [2]
    assert [(v.version, v.serves) for v in models.model_versions("n")] == [(1, True)]


def test_built_log_partitions_are_unbuilt_no_more(models: ReadModelStore) -> None:
    models.mark_built("m", 2, [3, 4])
    assert [v.unbuilt for v in models.model_versions("m")] == [[], [1, 5]]
    models.mark_built("m", 2, [5, 1])
    assert [v.unbuilt for v in models.model_versions("m")] == [[], []]


def test_a_version_that_serves_is_used_and_so_is_a_newer_one_for_a_day(models: ReadModelStore) -> None:
    assert not models.is_unused_version("m", 1, 2)
    assert not models.is_unused_version("m", 2, 2)
    assert models.is_unused_version("m", 2, 3)
    models.connection.execute("update read_models.declarations set declared_at = declared_at - interval '25 hours'")
    assert models.is_unused_version("m", 2, 1)
    assert not models.is_unused_version("m", 1, 2)


@pytest.mark.parametrize("stayed", [[], ["m"]])
def test_one_at_a_time_changes_the_versions_of_a_model(
    models: ReadModelStore, connect: Connect, stayed: list[str]
) -> None:
    models.connection.execute("insert into event_store.model_locks select unnest(%s::text[])", (stayed,))
    holder, other = ReadModelStore(connect(autocommit=False)), ReadModelStore(connect())
    for _ in range(2):
        holder.lock_model("m")
    other.lock_model("n")
    waiting = start(lambda: other.lock_model("m"))
    wait_blocked(models.connection, other.connection.info.backend_pid)
    assert not waiting.done()
    holder.connection.commit()
    waiting.result(patience())
    assert rows(models.connection, "select from event_store.model_locks") == []


def test_events_that_were_discarded_and_purged_are_told_for_every_version(models: ReadModelStore) -> None:
    models.connection.execute(
        """
        insert into event_store.audit_log (done_at, done_by, operation, view, detail)
        select now(), 'me', a.operation, a.view, jsonb_build_object('offset', a.at)
        from (
          values ('discard_dead_letter', 'orders', 1), ('discard_dead_letter', 'orders_v2', 2),
            ('discard_dead_letter', 'others', 3), ('seek_view', 'orders', 4), ('discard_dead_letter', 'orders', 5),
            ('discard_dead_letter', 'orders', null)
        ) a(operation, view, at)
        """
    )
    models.connection.execute('insert into event_store.event_log (partition, position, "offset") values (0, 0, 5)')
    assert models.purged_discards("orders") == {1, 2}
    assert models.purged_discards("unknown") == frozenset()
    assert rows(models.connection, "select event_store_platform.purged_discards('others')") == [(3,)]
