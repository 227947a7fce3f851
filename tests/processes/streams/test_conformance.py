"""The conformance suite of Durable Streams, its reading half, by a shim for what it writes."""

import json
import os
import shutil
import threading
from pathlib import Path

import httpx
import pytest
import uvicorn

from millrace.event_store.platform import PlatformStore
from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from tests.processes.streams.shim import Shim
from tests.streams.support import token_of
from tests.support.patience import patience, wait_until
from tests.support.running.programs import ran

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="it installs packages with npm")
SUITE = "@durable-streams/server-conformance-tests@0.3.6"
GROUPS = (
    "Read Operations",
    "Long-Poll Operations",
    "HEAD Metadata",
    "Offset Validation and Resumability",
    "Long-Poll Edge",
    "Caching and ETag",
    "Read-Your-Writes",
    "SSE Mode",
    "^JSON Mode",
    "Browser Security",
    "Protocol Edge",
)
BINARY = "our streams are JSON, and never binary"
WRITES = "what is written, which the shim does not judge"
# each with its reason
DIFFERENT = {
    "should enforce case-sensitive seq ordering": WRITES,
    "should reject missing Content-Type on POST": WRITES,
    "should return TTL metadata if configured": "streams have no time to live",
    "should allow If-None-Match in CORS preflight responses": "pages of other origins may not read",
    "should handle binary data with integrity": BINARY,
    "base64 SSE catch-up pairs every data event with a control event": BINARY,
    "should auto-detect binary streams and return base64 encoded data in SSE mode": BINARY,
    "should include Stream-SSE-Data-Encoding header for binary streams": BINARY,
    "should handle large binary payload with auto-detected base64 encoding": BINARY,
    "should handle binary data with special bytes using auto-detected base64 encoding": BINARY,
    "should auto-detect base64 encoding for application/x-protobuf streams": BINARY,
    "should auto-detect base64 encoding for image/png streams": BINARY,
}


def test_what_the_suite_reads_is_as_it_should_be(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    ran("npm", "install", "--no-audit", "--no-fund", "--prefix", tmp_path, SUITE)
    shutil.copy(Path(__file__).with_name("suite.test.mjs"), tmp_path)
    with serving_streams(Followers(dsn), "127.0.0.1", 0) as port:
        headers = {"Authorization": f"Bearer {token_of(dsn)}"}
        reader = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=patience())
        app = Shim(store, reader).app()
        server = uvicorn.Server(uvicorn.Config(app, port=0, loop="asyncio", ws="none", log_level="error"))
        running = threading.Thread(target=server.run)
        running.start()
        wait_until(lambda: server.started, "the shim listens")
        base_url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        report = tmp_path / "report.json"
        words = ("--reporter=json", f"--outputFile={report}", "--testTimeout=60000", "-t", "|".join(GROUPS))
        try:
            ran("npx", "vitest", "run", *words, cwd=tmp_path, env={**os.environ, "SUITE_URL": base_url}, code=None)
        finally:
            server.should_exit = True
            running.join()
    results = [each for file in json.loads(report.read_text())["testResults"] for each in file["assertionResults"]]
    failed = {each["title"]: each["failureMessages"][0][:200] for each in results if each["status"] == "failed"}
    assert {title: why for title, why in failed.items() if title not in DIFFERENT} == {}
    assert sum(each["status"] == "passed" for each in results) >= 90
