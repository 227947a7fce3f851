"""A build beside the serving model resumes after its leases have expired: it ends with the existing result."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.drain import staged
from millrace.drain.as_of import build_as_of
from millrace.drain.diff import diff_with_serving
from millrace.drain.rebuild import Rebuild
from millrace.event_store import LogMark
from millrace.event_store.platform import PlatformStore
from tests.support.building.drains import Counted, drain, fill, later
from tests.support.building.model_versions import relations
from tests.support.factories import rows

Build = Callable[[str, Callable[[], SparkSession], LogMark], object]
BUILDS: dict[str, Build] = {
    "as of": lambda dsn, spark, mark: build_as_of(dsn, Counted, spark, mark).built_at,
    "diff": lambda dsn, spark, _: diff_with_serving(dsn, Counted, spark),
}
# stopped while it holds leases; stopped with staged rows
STEPS: list[tuple[object, str]] = [(Rebuild, "_build"), (staged, "_commit")]


@pytest.mark.parametrize(("owner", "name"), STEPS)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_stopped_while_another_one_builds_it_ends_with_the_same(
    things: PlatformStore,
    dsn: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    build: Build,
    owner: object,
    name: str,
) -> None:
    fill(things, 30)
    drain(dsn, spark, Counted)
    before, mark = relations(things.connection), things.mark_log("now")
    work: Callable[..., Any] = getattr(owner, name)
    built: list[object] = []

    def stopped(*args: object, **kwargs: object) -> object:
        monkeypatch.setattr(owner, name, work)
        # by the clock of the other build, the leases of this one have expired
        built.append(build(later(dsn), lambda: spark, mark))
        return work(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopped)
    assert [build(dsn, lambda: spark, mark)] == built
    assert rows(things.connection, "select view from event_store.views") == [("counted",)]
    assert not {name for name in relations(things.connection) - before if "_before" in name or "_rows" in name}
