"""A log partition of a read model that is red in Dagster, because a hanging run holds its lease."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.declarations import declared
from millrace.assets.partitions import log_partitions
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from millrace.read_models.stored.versions import attach_version
from tests.support.elsewhere import postgres_at
from tests.support.factories import append_to, ids_of_one_partition, register_orders, rows
from tests.support.incidents.page import PACKAGE, declare, incident

PERMITS = '''"""The permits."""

from millrace import count, read_model, stream_id


@read_model(view="permits", deciders=["order"], key=["permit_id"])
class Permits:
    """One row per permit."""

    permit_id = stream_id()
    events = count()
'''
KEY = dg.AssetKey(["read_models", "permits"])


@pytest.fixture
def permits(store: PlatformStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlatformStore]:
    """Make a store with events in two log partitions, a read model of them, and a hanging run with a lease."""
    declare(tmp_path, "read_models", "permits", PERMITS)
    monkeypatch.syspath_prepend(str(tmp_path))
    register_orders(store)
    for partition in (3, 4):
        (one, two) = ids_of_one_partition(store.connection, 2, partition)
        append_to(store, one, two, two)
    attach_version(store.connection, declared(PACKAGE).models["permits"])
    store.claim_partition("permits", 3, "a run that hangs", 3600)
    yield store
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_partition_is_built_anew_and_green(
    permits: PlatformStore, dsn: str, spark_remote: str, tmp_path: Path
) -> None:
    assert spark_remote
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    variables = {"MILLRACE_DSN": dsn, "DAGSTER_HOME": str(home)}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        defs = build_defs(declarations=declared(PACKAGE), resources={"postgres": postgres_at(dsn)})
        failed = defs.resolve_job_def("rebuild").execute_in_process(
            instance=instance,
            partition_key="p03",
            run_config={"ops": {"read_models__permits": {"config": {"wait_s": 0}}}},
            raise_on_error=False,
        )
        assert not failed.success
    assert status(home) == {"p03": "FAILED", "p04": None}
    with incident("A partition is red", tmp_path, **variables) as operator:
        assert "a run that hangs" in operator.follow()
        operator.follow()
    assert status(home) == {"p03": "MATERIALIZED", "p04": None}
    one, two = ids_of_one_partition(permits.connection, 2, 3)
    built = rows(permits.connection, "select permit_id, events from read_models.permits order by events")
    assert built == [(one, 1), (two, 2)]


def status(home: Path) -> dict[str, str | None]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        found = instance.get_status_by_partition(KEY, ["p03", "p04"], log_partitions(16))
    assert found is not None
    return {key: state and state.name for key, state in found.items()}
