"""A real HTTP server that receives alerts: it verifies each with the library of Standard Webhooks.

Belongs here: the receiver, and an alerter in a separate process. Not here: assertions of tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from millrace.operations.alerts.receiver import AlertSettings
from tests.support.patience import wait_until
from tests.support.running.http_servers import Silent

SECRET = "whsec_c2VjcmV0IG9mIG91ciB0ZXN0cywgMzIgYnl0ZXMhISE="
# the command, but without the waits before a look and before the end of an incident
SEQUENCE = """
import sys
from millrace.operations.alerts import alerter, receiver
alerter.run_alerter.__kwdefaults__.update(every_s=0.05, hold_s=0)
{more}
sys.argv = ["millrace", "run", "sequencer"]
from millrace.platform_defs.cli import main
main()
"""
# claims a message, reports the claim, and never sends the message
STUCK = """
import time
receiver.AlertReceiver.send = lambda *_: print("CLAIMED", flush=True) or time.sleep(3600)
"""


@dataclass(frozen=True)
class Alert:
    """A message that the receiver has verified, unchanged."""

    webhook_id: str
    timestamp: int
    text: str
    body: dict[str, Any]


class Hook(ThreadingHTTPServer):
    """Stores messages, notes those that it cannot verify, and answers as the test sets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.alerts: list[Alert] = []
        self.forged: list[str] = []
        self.signed = True
        self.answer: Callable[[Alert], int] = lambda _: 204
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hooks/T0/hidden"

    def told(self) -> list[tuple[str, str]]:
        """Return phase and subject of each message, in order."""
        return [(alert.body["type"].partition(".")[2], alert.body["data"].get("subject", "")) for alert in self.alerts]

    def until(self, number: int) -> list[tuple[str, str]]:
        wait_until(lambda: len(self.alerts) >= number or bool(self.forged), f"{number} messages")
        assert self.forged == []
        return self.told()


class _Post(Silent, BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.server.signed:
            try:
                Webhook(SECRET).verify(text, dict(self.headers))
            except Exception as error:  # noqa: BLE001  a test asserts that there was none
                self.server.forged.append(f"{error}: {text}")
        given = self.headers.get("webhook-id", ""), int(self.headers.get("webhook-timestamp", 0))
        alert = Alert(*given, text, json.loads(text))
        self.server.alerts.append(alert)
        status = self.server.answer(alert)
        with suppress(OSError):
            self.send_response(status)
            if status // 100 == 3:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()


def settings_for(hook: Hook, form: str = "standard") -> AlertSettings:
    return AlertSettings(hook.url, SECRET, form, "https://ui.example.com/", ["127.0.0.1"])


def environment(dsn: str, url: str, **more: str) -> Mapping[str, str]:
    """Return the environment of a sequencer that sends alerts, and knows no Dagster."""
    own = {name: value for name, value in os.environ.items() if name not in {"DAGSTER_HOME", "MILLRACE_METRICS_PORT"}}
    alerts = {"MILLRACE_ALERT_URL": url, "MILLRACE_ALERT_SECRET": SECRET, "MILLRACE_PUSH_ALLOW": "127.0.0.1"}
    return {**own, "MILLRACE_DSN": dsn, **alerts, **more}


@contextmanager
def sequencing(environ: Mapping[str, str], more: str = "") -> Iterator["subprocess.Popen[str]"]:
    """Run `millrace run sequencer` in a separate process; kill it at the end, if it lives."""
    command, pipe = [sys.executable, "-c", SEQUENCE.format(more=more)], subprocess.PIPE
    process = subprocess.Popen(command, env=environ, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
