"""What the source gives up once it is stored is stored durably, whatever the session's settings are.

Not here: a store that crashes (tests/processes/capture).
"""

from collections.abc import Callable

from tests.support.capturing.captures import Source, source
from tests.support.factories import value

__all__ = ["source"]

# what a session says, and what holds while a capture stores
PINNED = {"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"}


def test_what_the_source_gives_up_is_stored_durably_whatever_the_session_says(source: Source) -> None:
    connection = source.store.connection
    works: tuple[Callable[[], object], ...] = (
        lambda: source.save([]),
        lambda: source.store.record_gap("c", None, None, "lost"),
        source.begin,
    )
    for setting, pinned in PINNED.items():
        connection.execute(f"set synchronous_commit = {setting}".encode())
        for work in works:
            with connection.transaction():
                work()
                assert value(connection, "show synchronous_commit") == pinned
            assert value(connection, "show synchronous_commit") == setting
