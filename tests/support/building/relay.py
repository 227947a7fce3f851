"""A relay to a server that can be cut, paused or silenced: to a client the server seems gone or hanging."""

import socket
import socketserver
import threading
from contextlib import suppress


class Relay(socketserver.ThreadingTCPServer):
    """A relay to a port of this machine or to a unix socket; it can be cut."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: int | str) -> None:
        self.target = target
        self.open: list[socket.socket] = []
        # open connections that no longer forward anything
        self.silent: set[socket.socket] = set()
        # nothing is forwarded while this is not set
        self.goes_on = threading.Event()
        self.goes_on.set()
        super().__init__(("127.0.0.1", 0), _Relayed)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def hush(self) -> None:
        """Silence the connections that are open now; new ones work as before."""
        self.silent.update(self.open)

    def reach(self) -> socket.socket:
        if isinstance(self.target, int):
            return socket.create_connection(("127.0.0.1", self.target))
        there = socket.socket(socket.AF_UNIX)
        there.connect(self.target)
        return there

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
        with self.server.reach() as there:
            self.server.open += [self.request, there]
            threading.Thread(target=_pump, args=(there, self.request, self.server), daemon=True).start()
            _pump(self.request, there, self.server)


def _pump(source: socket.socket, sink: socket.socket, relay: Relay) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            relay.goes_on.wait()
            if sink not in relay.silent:
                sink.sendall(block)
        sink.shutdown(socket.SHUT_RDWR)
