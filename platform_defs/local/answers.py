"""Health checks of the services of `millrace up`: each asks a question that only the working part can answer.

Spark and the code server are asked by gRPC in plain bytes, and are pinned: Spark's modules for this would take 90 MB
here, and Dagster's are private.
"""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import psycopg
import requests

from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import DAEMON_IDLE_S
from millrace.patience import ASK_S, BUSY_S, PATIENCE_S, PAUSE_S, POLL_S
from millrace.platform_defs.local.asking import CannotTell
from millrace.postgres.connecting import connect
from millrace.sequencer import held_up

# for the embedded Postgres, whose restart disturbs every service: a little less than the limit of any answer
POSTGRES_S = BUSY_S - PAUSE_S
# the form of an error in an answer of the code server
FAILED = b"SerializableErrorInfo"
BEATS = "{ instance { daemonHealth { allDaemonStatuses { daemonType required lastHeartbeatTime } } } }"


def code_answers(socket: Path) -> bool:
    """Return whether the code server has definitions: its child answers, which holds them, and not the proxy before it.

    Raises:
        CannotTell: They do not load. A server that starts may lack something, and is not ready. A running server that
            was told to reload them shows the fault in the UI, and its runs continue.
    """
    response = _definitions(socket)
    if FAILED in response:
        raise CannotTell
    return bool(response)


def why_none_load(socket: Path) -> list[str]:
    """Return why the code server's definitions do not load, in a line; nothing if they load, or no answer comes."""
    response = _definitions(socket)
    if FAILED not in response:
        return []
    error = json.loads(response[response.index(b"{") :])
    # Dagster's own error is around the cause, and a text begins with its class
    said = re.sub(r"^millrace[\w.]+: ", "", (error["cause"] or error)["message"])
    return [f"No declaration loads, so nothing new starts: {' '.join(said.split())}"]


def _definitions(socket: Path) -> bytes:
    return _call(f"unix:{socket}", "/api.DagsterApi/ListRepositories")


def spark_answers(address: str, token: str, session: str) -> bool:
    """Return whether a Spark Connect server answers in a session; the session is opened if need be."""
    # AnalyzePlanRequest: session_id, user_context.user_id, spark_version
    request = _field(1, session.encode()) + _field(2, _field(1, b"millrace up")) + _field(10, b"")
    bearer = [("authorization", f"Bearer {token}")]
    return bool(_call(address, "/spark.connect.SparkConnectService/AnalyzePlan", request, bearer))


def postgres_answers(dsn: str) -> bool:
    """Return whether a Postgres answers at all: also while it recovers, or has no connection left."""
    try:
        connect(dsn, connect_timeout=POSTGRES_S).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.OperationalError:
        return True
    return True


def sequencer_answers(dsn: str) -> bool:
    """Return whether a sequencer attends the log, or an open transaction blocks all sequencers.

    Raises:
        CannotTell: The event store does not answer.
    """
    try:
        with connect(dsn, connect_timeout=ASK_S) as connection:
            store = PlatformStore(connection)
            # no call of a working sequencer takes longer
            deadline = time.monotonic() + ASK_S
            while not (attended := store.is_attended()) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            return attended or held_up(store) is not None
    except psycopg.Error as error:
        raise CannotTell from error


class DaemonBeats:
    """Asks the UI whether Dagster's daemon still sends heartbeats; make one per start of the daemon, and call it again.

    Only changes of the heartbeat times count, measured by a monotonic clock.

    Args:
        url: The address of the UI.
        token: The token that the UI requires, if any.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # for each kind of daemon: its last heartbeat, and when we saw it change
        self._last_beats: dict[str, float | None] = {}
        self._changed: dict[str, float] = {}

    def __call__(self) -> bool:
        """Return whether a daemon of any kind lived just now, and each kind within the time before it is an incident.

        Raises:
            CannotTell: The UI does not answer.
        """
        try:
            with requests.Session() as session:
                # as `gated` asks
                session.trust_env = False
                answer = session.post(
                    f"{self._url}/graphql", json={"query": BEATS}, headers=self._headers, timeout=BUSY_S / 2
                )
            statuses = answer.json()["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
            beats = {each["daemonType"]: each["lastHeartbeatTime"] for each in statuses if each["required"]}
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            raise CannotTell from error
        now = time.monotonic()
        for kind, beat in beats.items():
            if self._last_beats.setdefault(kind, beat) != beat:
                self._last_beats[kind], self._changed[kind] = beat, now
        idle = [now - self._changed.get(kind, -float("inf")) for kind in beats]
        # Dagster's daemon sends a heartbeat every 30 s
        return min(idle) < PATIENCE_S and max(idle) < DAEMON_IDLE_S


def _call(address: str, method: str, request: bytes = b"", headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the answer to a call by gRPC; empty if none comes in time."""
    try:
        with grpc.insecure_channel(address) as channel:
            answer: bytes = channel.unary_unary(method)(request, timeout=BUSY_S, metadata=headers)
            return answer
    except grpc.RpcError:
        return b""


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a message as protobuf has it: its number and kind, its length, its content."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content
