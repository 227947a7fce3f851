"""docs/who_may_do_what.md tested: another account's access to files, ports and processes of `millrace up`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import psutil

from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.accounts.strangers import as_stranger
from tests.support.pages.documents import table

NOTHING = "nothing"
SEES = "sees that it runs, and its command line"
REFUSED = "connects, and is not served without its secret"
READS = "reads the metrics, with the names of views, captures and sensors; it is off by default"
USES = "uses it; with `MILLRACE_UI_TOKEN`, only with the token"
HOME, POSTGRES, ELSEWHERE = (
    "`MILLRACE_HOME`, with all that is not named here",
    "Postgres",
    "temporary files elsewhere, such as Java's",
)
FILES, SOCKETS, PROCESSES = "file or folder, and all below it", "socket or port", "process"
# As `look` finds them while `millrace up` runs with its examples: each thing, and another account's access to it. It
# cannot read a file, list a folder, or inspect a process (environment, memory, open files, folders).
ROWS = {
    kind: {row[0]: row[1] for row in table("docs/who_may_do_what.md", kind)} for kind in (FILES, SOCKETS, PROCESSES)
}
# Tries each thing, a JSON list of a kind, a row and a target, and prints the access that it got.
TRY = """
import contextlib, json, os, socket, struct, sys

PRIVATE = ("environ", "maps", "smaps", "mem", "auxv", "io", "stack", "syscall", "fd", "fdinfo", "cwd", "exe", "root")

def read(path):
    if os.path.islink(path):
        return os.readlink(path)
    return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)

def path(target):
    read(target)
    return "reads it"

def process(pid):
    found = []
    for name in PRIVATE:
        with contextlib.suppress(PermissionError):
            # of a process that is about to end, its memory is gone: its files open, and are empty
            if read(f"/proc/{pid}/{name}"):
                found.append(name)
    with contextlib.suppress(PermissionError):
        os.kill(int(pid), 0)
        found.append("signals")
    if not found and not read(f"/proc/{pid}/cmdline"):
        raise ProcessLookupError  # it has ended, and its parent has not noticed yet
    return "reads " + ", ".join(found or ["cmdline"])

def unix(target):
    socket.socket(socket.AF_UNIX).connect(target)
    return "connects"

def asked(port, request, whole=False):
    with socket.create_connection(("127.0.0.1", int(port)), 60) as connection:
        connection.sendall(request)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := connection.recv(4096):
                answer += part
                if not whole:
                    break
        return answer

def ui(port):
    request = f"GET /server_info HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n"
    answer = asked(port, request.encode())
    return "served" if answer.startswith(b"HTTP/1.1 200") else "connects: " + repr(answer)

def metrics(port):
    answer = asked(port, f"GET /metrics HTTP/1.0\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
    return "read" if answer.startswith(b"HTTP/1.0 200") else "connects: " + repr(answer)

def connect(port):
    import grpc
    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/spark.connect.SparkConnectService/Config")
    try:
        call(b"", timeout=300)
    except grpc.RpcError as error:
        return "refused" if error.code() is grpc.StatusCode.UNAUTHENTICATED else f"connects: {error.code()}"
    return "served"

def spark(port):
    # a request of Spark's RPC before any proof: it is told (5, a failure) that the proof comes first
    body = b"hello"
    request = struct.pack(">qbqi", 21 + len(body), 3, 1, len(body)) + body
    answer = asked(port, request)
    return "refused" if answer[8:9] == b"\\5" and b"Expected SaslMessage" in answer else "connects: " + repr(answer)

def daemon(port):
    # a worker says its number and is told the secret; "err" is its answer to another one, and then it ends
    answer = asked(port, struct.pack(">i", 5) + b"wrong", whole=True)
    return "refused" if answer[4:] == struct.pack(">i", 3) + b"err" else "connects: " + repr(answer)

for word in sys.argv[1:]:
    kind, row, target = json.loads(word)
    try:
        got = globals()[kind](target)
    except PermissionError:
        got = "nothing"
    except (FileNotFoundError, ProcessLookupError):
        continue  # it ended meanwhile
    print(json.dumps([row, got, target]))
"""
# result of a try -> text on the page
GOT = {"nothing": NOTHING, "reads cmdline": SEES, "refused": REFUSED, "served": USES, "read": READS}


@dataclass(frozen=True)
class Thing:
    """A thing to try: its kind, its row on the page, and its path, port or process."""

    kind: str
    row: str
    target: str


def look(home: Path, up: psutil.Process, port: int) -> dict[str, dict[str, str]]:
    """Try everything of a running `millrace up` as another account; return its access in the shape of `ROWS`.

    If things of one row differ, the row names each access.
    """
    files, sockets, processes = {*_files(home)}, set[Thing](), set[Thing]()
    for process, row in _processes(home, up).items():
        try:
            sockets |= {*_sockets(process, row, port)}
            opened = {Path(found.path) for found in process.open_files()} | {*_mapped(process)}
        except (psutil.Error, FileNotFoundError):
            continue  # a run or a worker that ended meanwhile
        processes.add(Thing("process", row, str(process.pid)))
        files |= {Thing("path", ELSEWHERE, str(path)) for path in opened if _is_temporary(path, home)}
    return dict(zip(ROWS, map(_tried, (files, sockets, processes)), strict=True))


def _files(home: Path) -> Iterator[Thing]:
    yield Thing("path", HOME, str(home))
    for path in home.rglob("*"):
        if not path.is_socket():
            row = f"`{path.relative_to(home).parts[0]}`"
            # such as an archive, which appears after a certain hour
            yield Thing("path", row if row in ROWS[FILES] else HOME, str(path))


def _mapped(process: psutil.Process) -> Iterator[Path]:
    for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
        _, slash, path = line.partition("/")
        yield Path(slash + path)


def _is_temporary(path: Path, home: Path) -> bool:
    places = (Path(gettempdir()), Path("/dev/shm"))
    return any(map(path.is_relative_to, places)) and not path.is_relative_to(home)


def _processes(home: Path, up: psutil.Process) -> dict[psutil.Process, str]:
    found = {up: "`millrace up`"}
    for file in (home / "run").glob("*.json"):
        service = psutil.Process(json.loads(file.read_text())["pid"])
        more = {"code": ", runs", "spark": ", Spark's workers"}.get(file.stem, "")
        for process in (service, *service.children(recursive=True)):
            found[process] = f"service {file.stem}{more}"
    for process in up.children(recursive=True):
        found.setdefault(process, "`millrace up`")
    server = EmbeddedPostgres(home / "postgres").pid()
    assert server is not None
    postgres = psutil.Process(server)
    return found | dict.fromkeys((postgres, *postgres.children(recursive=True)), POSTGRES)


def _sockets(process: psutil.Process, row: str, port: int) -> Iterator[Thing]:
    for connection in process.net_connections("unix"):
        if path := str(connection.laddr or ""):
            own = "code server" if path.endswith("code/socket") else "processes of Dagster"
            yield Thing("unix", f"socket of {POSTGRES if row == POSTGRES else f'the {own}'}", path)
    for connection in process.net_connections("inet"):
        if connection.status == psutil.CONN_LISTEN:
            number = connection.laddr.port
            kind, what = _served(process, row, number, port)
            yield Thing(kind, what, str(number))


def _served(process: psutil.Process, row: str, number: int, port: int) -> tuple[str, str]:
    """Return how to query a port, and its row."""
    if number == port:
        return "ui", "UI"
    if row == "service sequence":
        return "metrics", "metrics"
    if "spark" in row and process.name() == "java":
        grpc = f"spark.connect.grpc.binding.port={number}" in process.cmdline()
        return ("connect", "Spark Connect") if grpc else ("spark", "Spark's other ports")
    return "daemon", "ports of Spark's Python daemons" if "spark" in row else f"a port of {row}"


def _tried(things: set[Thing]) -> dict[str, str]:
    got: dict[str, set[str]] = {}
    words = [json.dumps([each.kind, each.row, each.target]) for each in sorted(things, key=str)]
    # this many fit on a command line, however long the paths
    for first in range(0, len(words), 1000):
        said = as_stranger(TRY, *words[first : first + 1000])
        assert said.returncode == 0, said.stderr
        for line in said.stdout.splitlines():
            row, answer, target = json.loads(line)
            got.setdefault(row, set()).add(GOT.get(answer, f"{target}: {answer}"))
    return {row: "; ".join(sorted(told)) for row, told in sorted(got.items())}
