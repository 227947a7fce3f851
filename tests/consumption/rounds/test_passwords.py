"""A password that is changed while a shared drain lives: the drain ends soon, and says why."""

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millrace.resources.consumption.connection import connect_patiently, is_shut_out
from millrace.resources.consumption.rounds import drain as draining
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.errors import Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.consumption.rounds.test_servers_that_go import assert_whole, fill_anew, server, store_at
from tests.support.building.shared_drains import ALL_WELL, FEW, share, why_away
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["server"]


def test_a_password_that_is_changed_ends_the_drain_which_gives_its_leases_back(
    server: EmbeddedPostgres, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    # a minute holds two looks, and a round
    assert draining.KNOCK_EVERY_S * draining.MOST_SHUT_OUT < 45
    monkeypatch.setattr(draining, "KNOCK_EVERY_S", 0.1)
    admin = server.dsn("own")
    with store_at(admin) as store:
        rules = Path(str(store.connection.execute("show hba_file").fetchone()[0]))  # type: ignore[index]
        store.connection.execute("create role rotating superuser login password 'one'")
        rules.write_text(f"local all rotating scram-sha-256\n{rules.read_text()}")
        store.connection.execute("select pg_reload_conf()")
        first, second = (make_conninfo(admin, user="rotating", password=password) for password in ("one", "two"))
        fill_anew(admin, 40)
        with SharedDrain(first, FEW, lambda: spark, "rounds") as shared:
            shared.run(budget_s=patience(), idle_s=1)
            assert why_away(shared) == ALL_WELL
            store.connection.execute("alter role rotating password 'two'")
            fill_anew(admin, 41)
            with pytest.raises(Unreachable, match="does not let this drain in any more"):
                shared.run(budget_s=patience(), idle_s=patience())
        assert store.owned_leases("rounds") == {}
    assert (is_shut_out(first), is_shut_out(second), is_shut_out("host=/nowhere")) == (True, False, False)
    # nobody waits for long for a password to become right
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect_patiently(first)
    assert share(second, spark, FEW) == ALL_WELL
    assert_whole(admin, spark, FEW)
