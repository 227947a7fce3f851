"""Two captured tables: the first is changed by tests; the second, `good`, is captured all the while."""

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from millrace.capture.declaration import CapturedTable
from tests.support.capturing.captured import Captured, declared

GOOD = CapturedTable("good")
FILL = "insert into items values (1, 'goes'), (2, 'stays'), (3, 'changes')"


def both(captured: Captured, *tables: CapturedTable) -> Captured:
    captured.source.run("create table good (id int primary key, name text)", "insert into good values (1, '1st')", FILL)
    return declared(captured, CapturedTable("items"), GOOD, *tables)


@pytest.fixture
def as_role(captured: Captured) -> Iterator[Captured]:
    """Capture both tables as a role without superuser."""
    role, run = f"r_{captured.source.slot}", captured.source.connection.execute
    captured = both(captured)
    for statement in (
        f"create role {role} login replication", f"grant create on database {captured.source.slot} to {role}",
        f"alter table items owner to {role}", f"alter table good owner to {role}",
    ):  # fmt: skip
        run(statement.encode())
    dsn = psycopg.conninfo.make_conninfo(captured.source.dsn, user=role)
    yield replace(captured, capture=replace(captured.capture, source=lambda: dsn))
    run(f"drop owned by {role} cascade; drop role {role}".encode())
