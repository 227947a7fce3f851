"""Dagster's instance as `millrace up` configures it, on our storage, in a test's own database."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.project import PROJECT

DATABASE = "of_dagster"


@pytest.fixture
def instance(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """Open the instance that DAGSTER_HOME names."""
    postgres.create_database(DATABASE)
    monkeypatch.setenv("MILLRACE_DAGSTER_DSN", postgres.dsn(DATABASE))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.get() as opened:
        yield opened
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"drop database if exists {DATABASE} with (force)".encode())
