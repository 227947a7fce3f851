"""Logins of a test's own, each a member of one role."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg

Login = Callable[..., psycopg.Connection]


@contextmanager
def logins(admin: psycopg.Connection) -> Iterator[Login]:
    """Yield a maker of connections, each as a new login with the given roles only."""
    made: list[tuple[str, psycopg.Connection]] = []

    def login(*roles: str) -> psycopg.Connection:
        user = f"user_{uuid4().hex}"
        admin.execute(f"create role {user} login in role {', '.join(roles)}".encode())
        made.append((user, psycopg.connect(admin.info.dsn, user=user, autocommit=True)))
        return made[-1][1]

    try:
        yield login
    finally:
        for user, connection in made:
            connection.close()
            admin.execute(f"drop owned by {user}".encode())
            admin.execute(f"drop role {user}".encode())
