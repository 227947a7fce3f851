"""What the services of `millrace up` are asked: each something that only its working part can answer.

Spark and the code server are asked by gRPC in plain bytes, and are pinned: the modules that Spark and Dagster have for
it would take 90 MB here, or are private to them.
"""

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

# for the embedded Postgres, whose restart disturbs all: a little less than any answer may take
POSTGRES_S = BUSY_S - PAUSE_S
BEATS = "{ instance { daemonHealth { allDaemonStatuses { daemonType required lastHeartbeatTime } } } }"


def code_answers(socket: Path) -> bool:
    """Say whether the code server has definitions: its child says so, which holds them, and not the proxy before it.

    Raises:
        CannotTell: They do not load. Where it starts it may have lacked something, and is not ready. One that ran, and
            was told to load them anew, shows in the UI what is wrong, and its runs go on.
    """
    said = _called(f"unix:{socket}", "/api.DagsterApi/ListRepositories")
    if said and b"ListRepositoriesResponse" not in said:
        raise CannotTell
    return bool(said)


def spark_answers(address: str, token: str, session: str) -> bool:
    """Say whether a Spark Connect server answers in a session, which it opens if need be."""
    # AnalyzePlanRequest: session_id, user_context.user_id, spark_version
    request = _field(1, session.encode()) + _field(2, _field(1, b"millrace up")) + _field(10, b"")
    bearer = [("authorization", f"Bearer {token}")]
    return bool(_called(address, "/spark.connect.SparkConnectService/AnalyzePlan", request, bearer))


def postgres_answers(dsn: str) -> bool:
    """Say whether a Postgres says anything at all: it answers also while it recovers, or has no connection left."""
    try:
        connect(dsn, connect_timeout=POSTGRES_S).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.OperationalError:
        return True
    return True


def sequencer_answers(dsn: str) -> bool:
    """Say whether a sequencer attends the log, or cannot, for a transaction keeps everybody from it.

    Raises:
        CannotTell: The event store does not answer.
    """
    try:
        with connect(dsn, connect_timeout=ASK_S) as connection:
            store = PlatformStore(connection)
            # no call of a sequencer that is at work takes longer
            deadline = time.monotonic() + ASK_S
            while not (attended := store.is_attended()) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            return attended or held_up(store) is not None
    except psycopg.Error as error:
        raise CannotTell from error


class DaemonBeats:
    """Asks the UI whether Dagster's daemon goes on saying that it lives; once for a daemon that starts, and again.

    What counts is that its times change, by a clock that nobody sets.

    Args:
        url: The address of the UI.
        token: What the UI asks for, if anything.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # of each kind of daemon: what it said last, and when we saw that change
        self._said: dict[str, float | None] = {}
        self._changed: dict[str, float] = {}

    def __call__(self) -> bool:
        """Say whether a daemon of any kind lived just now, and each within the time after which it is an incident.

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
            said = {each["daemonType"]: each["lastHeartbeatTime"] for each in statuses if each["required"]}
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            raise CannotTell from error
        now = time.monotonic()
        for kind, beat in said.items():
            if self._said.setdefault(kind, beat) != beat:
                self._said[kind], self._changed[kind] = beat, now
        idle = [now - self._changed.get(kind, -float("inf")) for kind in said]
        # Dagster's daemon says that it lives every 30 s
        return min(idle) < PATIENCE_S and max(idle) < DAEMON_IDLE_S


def _called(address: str, method: str, request: bytes = b"", headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the answer to a call by gRPC; nothing if there is none in time."""
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
