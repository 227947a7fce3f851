"""HTTP servers within a test's process, in a thread of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=HTTPServer)


class Silent:
    """What handlers of requests derive from first, to write no line for each to stderr."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
