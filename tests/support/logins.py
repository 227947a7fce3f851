"""Logins of a test's own, each a member of the given roles."""

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
        admin.execute(f"create role {user} login".encode())
        for role in roles:
            admin.execute(f"grant {role} to {user}".encode())
        made.append((user, psycopg.connect(admin.info.dsn, user=user, autocommit=True)))
        return made[-1][1]

    try:
        yield login
    finally:
        for user, connection in made:
            connection.close()
            admin.execute(f"drop owned by {user}".encode())
            admin.execute(f"drop role {user}".encode())
