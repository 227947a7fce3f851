"""Which way a log came, and how far two histories are the same. Not here: what captures make of it (test_failover)."""

import psycopg
import pytest

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.source.connection import connect_source
from millrace.resources.capture.source.timelines import Timelines, TimelinesUnknown, read_timelines
from tests.support.capturing.failovers import Cluster, cluster

__all__ = ["cluster"]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("1", "1", None),
        ("1 0/10, 2", "1 0/10, 2", None),
        ("1", "1 0/10, 2", "0/10"),
        ("1", "1 0/10, 2 0/20, 3", "0/10"),
        ("1 0/10, 2", "1 0/10, 2 0/20, 3", "0/20"),
        # both were promoted, each by itself
        ("1 0/10, 2", "1 0/18, 2", "0/10"),
        ("1 0/10, 2", "1 0/10, 3", "0/10"),
        ("1 0/10, 2 0/20, 4", "1 0/10, 3 0/30, 4", "0/10"),
        # histories without a common beginning
        ("2", "3", "0/0"),
    ],
)
def test_two_logs_are_one_up_to_where_the_first_of_them_went_another_way(
    one: str, other: str, common: str | None
) -> None:
    for a, b in ((one, other), (other, one)):
        found = Timelines.parse(a).common(Timelines.parse(b))
        assert found == (None if common is None else Lsn.parse(common))
        assert str(Timelines.parse(a)) == a


def test_a_role_that_may_only_replicate_learns_where_the_log_left_each_timeline(cluster: Cluster) -> None:
    first = cluster.primary.dsn("postgres", "replicates")
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create role replicates login replication")
        admin.execute("create role plain login")
    with connect_source(first) as source:
        assert str(read_timelines(source)) == "1"
    for present in (2, 3):
        cluster.take_over(cluster.standby())
        with connect_source(cluster.primary.dsn("postgres", "replicates")) as source:
            found = read_timelines(source)
        assert (found.present, [timeline for timeline, _ in found.left]) == (present, list(range(1, present)))
    history = (cluster.primary.data / "pg_wal" / "00000003.history").read_text().splitlines()
    assert [str(lsn) for _, lsn in found.left] == [line.split("\t")[1] for line in history if line]
    with (
        connect_source(cluster.primary.dsn("postgres", "plain")) as source,
        pytest.raises(TimelinesUnknown, match=r"(?i)replication") as refused,
    ):
        read_timelines(source)
    assert "`replication`" in str(refused.value.hint)
