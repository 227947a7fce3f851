"""A real Postgres and a real Spark for the whole run, and an empty event store for each test."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.local.services import shared_session
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres, major_version
from millrace.spark import spark_session
from millrace.spark.session import SPARK_TOKEN
from tests.support import cpu_seconds
from tests.support.databases import Database, Databases
from tests.support.factories import register_orders
from tests.support.running.spark_server import shared_spark_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Some tests write values of a gigabyte. Arrow's own pool would keep that much memory; this one gives it back.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

# gRPC's fork handlers may kill a child process before it executes another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

RECEIPT_LOG = Path(__file__).resolve().parents[2] / "shared" / "data" / "receipt.csv"

# These JVMs live for a minute: a second compiler pays only after ten, and parallel collectors compete for two cores.
# The JVM that all tests share overflows the first compiler's default code cache of 48 MB, and would drop and
# recompile code that it still needs.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# A test takes a fraction of a second; on a disk, nine tenths of that would be the making of its database.
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30


def in_memory() -> Path | None:
    """Return a folder in memory for servers that only tests use; None (temporary files) if memory has no room."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


def pytest_configure(config: pytest.Config) -> None:
    cpu_seconds.register(config)
    if "PYTEST_XDIST_WORKER" not in os.environ and config.option.basetemp is None:
        # not the folder that all runs share: the next run would revoke access from Postgres' account
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder = tempfile.mkdtemp(prefix="millrace-tests-")
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
    # on a busy machine a round of a test may take minutes; tests of this limit set it themselves
    os.environ.setdefault("MILLRACE_BUILD_TIMEOUT_S", "36000")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection: they stay anyway, and it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    # files with Spark take longest, so they come first: short ones at the end fill any free process
    long_files = {item.path for item in items if "spark_remote" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in long_files)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        metavar="DIR",
        type=lambda folder: Path(folder).resolve(),
        default=PROGRAMS,
        help="run the tests' server with the programs in DIR, such as /usr/lib/postgresql/15/bin",
    )
    parser.addoption(
        "--kills", metavar="N", type=int, default=80, help="how often tests that kill at random moments do so (80)"
    )
    parser.addoption("--long", action="store_true", help="try more seeds and variants: half an hour, not a quarter")
    whole = "install the wheel of a user with every package that it needs, and do not share ours"
    parser.addoption("--full-install", action="store_true", help=whole)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    programs = pytestconfig.getoption("postgres")
    # not pytest's tmp_path: its path is too long for a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="millrace-", dir=in_memory()) as directory,
        EmbeddedPostgres(Path(directory), programs) as server,
    ):
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
            # tests kill processes, not the machine; each new or dropped database would wait for the disk
            admin.execute("alter system set fsync = off")
            admin.execute("alter system set max_prepared_transactions = 50")
            if major_version(programs) >= 17:
                # the least possible: a test fills the queue of notifications
                admin.execute("alter system set max_notify_queue_pages = 64")
            # it would write statistics at any moment, and stores would differ from the template
            admin.execute("alter system set autovacuum = off")
        server.stop()
        server.start()
        yield server


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres) -> str:
    """Make a migrated database without connections and return its name."""
    postgres.create_database("template_millrace")
    migrate(postgres.dsn("template_millrace"))
    return "template_millrace"


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, template: str) -> Iterator[Databases]:
    """Yield the maker of empty event stores."""
    with Databases(postgres, template) as made:
        yield made


@pytest.fixture(scope="session")
def spares(databases: Databases) -> Callable[[], str]:
    """Return a maker of further event stores, by name, for a test that needs two."""
    return databases.spare


@pytest.fixture
def lent_database(databases: Databases) -> Iterator[Database]:
    """Yield an empty event store of the test's own, with its sessions."""
    taken = databases.take()
    yield taken
    databases.give_back(taken)


@pytest.fixture
def dsn(postgres: EmbeddedPostgres, lent_database: Database) -> str:
    """Return the connection string of an empty event store of the test's own."""
    return postgres.dsn(lent_database.name)


@pytest.fixture
def connect(databases: Databases, lent_database: Database) -> Callable[..., psycopg.Connection]:
    """Return an opener of sessions, which end when the test does."""
    return partial(databases.connect, lent_database, autocommit=True)


@pytest.fixture
def store(connect: Callable[..., psycopg.Connection]) -> PlatformStore:
    """Return the event store behind an autocommit connection."""
    return PlatformStore(connect())


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    """Return a store in which order and invoice may append placed, paid and shipped."""
    return register_orders(store)


@pytest.fixture
def receipt_log() -> Path:
    """Return the file of a real event log: 8,577 events of 1,434 permit applications."""
    if not RECEIPT_LOG.exists():
        pytest.skip(f"the receipt log is not here: put it at {RECEIPT_LOG}")
    return RECEIPT_LOG


@pytest.fixture(scope="session")
def spark_remote(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[str]:
    """Start a Spark Connect server as `make run` does, for the whole run; SPARK_REMOTE leads to a session there."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    counted = partial(cpu_seconds.apart, pytestconfig, "the Spark server of all tests")
    with shared_spark_server(folder, counted) as (port, token), pytest.MonkeyPatch.context() as patch:
        remote = shared_session(port)
        patch.setenv("SPARK_REMOTE", remote)
        patch.setenv(SPARK_TOKEN, token)
        yield remote


@pytest.fixture(scope="session")
def spark(spark_remote: str) -> "Iterator[SparkSession]":
    """Yield a session of that server, for tests that build many small things."""
    assert spark_remote
    with spark_session() as session:
        yield session
