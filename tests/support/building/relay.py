"""A way to a server that can be cut, or stand still: what a client sees when the server is gone, or hangs.

Belongs here: the relay. Not here: what must hold afterwards.
"""

import socket
import socketserver
import threading
from contextlib import suppress


class Relay(socketserver.ThreadingTCPServer):
    """A way to a port of this machine that can be cut."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.open: list[socket.socket] = []
        # nobody is told anything while it is not set
        self.goes_on = threading.Event()
        self.goes_on.set()
        super().__init__(("127.0.0.1", 0), _Relayed)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self) -> None:
        self.shutdown()
        self.server_close()
        self.goes_on.set()
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Relayed(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as there:
            self.server.open += [self.request, there]
            threading.Thread(target=_pump, args=(there, self.request, self.server.goes_on), daemon=True).start()
            _pump(self.request, there, self.server.goes_on)


def _pump(source: socket.socket, sink: socket.socket, goes_on: threading.Event) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            goes_on.wait()
            sink.sendall(block)
        sink.shutdown(socket.SHUT_RDWR)
