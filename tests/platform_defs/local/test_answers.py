"""Health checks on real servers: yes if the service works, no if it hangs, and unknown where it cannot be asked."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import DAEMON_IDLE_S
from millrace.patience import PATIENCE_S
from millrace.platform_defs.local import answers
from millrace.platform_defs.local.answers import DaemonBeats, postgres_answers, sequencer_answers
from millrace.platform_defs.local.asking import CannotTell
from millrace.platform_defs.local.services import free_port
from tests.support.factories import Connect, append_to, register_orders
from tests.support.running.http_servers import Silent, serving


def test_a_sequencer_answers(store: PlatformStore, connect: Connect, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ASK_S", 0.1)
    # a consumer that sequences for itself is no sequencer
    store.sequence_events()
    assert not sequencer_answers(dsn)
    store.attend_log(10)
    store.sequence_events()
    assert sequencer_answers(dsn)
    store.attend_log(0)
    # the sequencer is blocked, and a new one would be, too
    register_orders(store)
    append_to(store, "o-1")
    with connect(autocommit=False) as holder:
        PlatformStore(holder).sequence_events()
        assert sequencer_answers(dsn)
    with pytest.raises(CannotTell):
        sequencer_answers(f"postgresql://u@127.0.0.1:{free_port()}/x")


def test_a_postgres_answers_also_where_it_refuses(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the shortest timeout of psycopg
    monkeypatch.setattr(answers, "POSTGRES_S", 2)
    assert postgres_answers(dsn)
    assert postgres_answers(f"{dsn}&user=nobody_of_this_name")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not postgres_answers(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x")


@contextmanager
def ui(said: list[object]) -> Iterator[str]:
    """Serve a UI that answers with the last of these reports on Dagster's daemons."""

    class Says(Silent, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Authorization"] == "Bearer of-the-ui"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said[-1]).encode())

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Says)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def beats(sensor: float | None, queue: float | None) -> object:
    statuses = [
        {"daemonType": kind, "required": kind != "ASSET", "lastHeartbeatTime": beat}
        for kind, beat in (("SENSOR", sensor), ("QUEUE", queue), ("ASSET", None))
    ]
    return {"data": {"instance": {"daemonHealth": {"allDaemonStatuses": statuses}}}}


def test_a_daemon_answers_while_its_times_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said: list[object] = [beats(100.0, None)]
    with ui(said) as url:
        ask = DaemonBeats(url, "of-the-ui")
        # a former daemon's heartbeat does not count
        assert not ask()
        for sensor, queue, later, answer in (
            (130.0, None, 0.0, False),
            # also if the clock was set back
            (130.0, 90.0, 0.0, True),
            (130.0, 90.0, PATIENCE_S - 1, True),
            (130.0, 90.0, 2.0, False),
            (190.0, 90.0, 0.0, True),
            (200.0, 90.0, DAEMON_IDLE_S - PATIENCE_S - 2, True),
            # one kind of daemon hangs
            (230.0, 90.0, 2.0, False),
            (230.0, 91.0, 0.0, True),
        ):
            now += later
            said.append(beats(sensor, queue))
            assert ask() is answer, (sensor, queue)
        nothings: list[object] = [{"errors": []}, {"data": None}, []]
        for nothing in nothings:
            said.append(nothing)
            with pytest.raises(CannotTell):
                ask()
    with pytest.raises(CannotTell):
        ask()
