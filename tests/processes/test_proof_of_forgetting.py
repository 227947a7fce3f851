"""After a forgetting and a rotation no file of a whole platform shows a value, and no copy of its key opens.

A search proves something only if it finds what is there: names, which are not sealed, are in every place that has
events, and each form of a value is planted once.
"""

import asyncio
import base64
import gzip
import json
import random
import shutil
import string
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace import AsyncEventStore, Delivery, EventStore, subscription
from millrace.archive.writer import archive_partition
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.events import CustomerRegistered, EmailGiven, register_shop
from millrace.handlers.trial import consumed
from millrace.importer.imported_events import Columns
from millrace.importer.importer import ImportedLog, import_events
from millrace.personal import Sealed, Sealer
from millrace.personal.envelope import decrypt, open_sealed
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.producers import ProducerStore
from millrace.settings import EXAMPLE
from tests.sql.event_store.test_every_way_in import STORES, append_from_a_table, event
from tests.support.factories import rows, value
from tests.support.patience import wait_until
from tests.support.running.deployment import MILLRACE, Deployment, started, until
from tests.support.running.programs import ran

PERSON, OTHER = "customer-501", "customer-502"
ARCHIVING = "mkdir -p archived_wal && cp %p archived_wal/%f"
ENVELOPE = """
    select data -> 'email' from event_store.events
    where event = 'email_given' and decider_id = 'customer-501' order by "offset" limit 1
"""


def letters() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=24))


class BaseBackup(EmbeddedPostgres):
    """A copy of all files of a running server."""

    @classmethod
    def taken(cls, source: EmbeddedPostgres, directory: Path) -> "BaseBackup":
        copy = cls(directory)
        directory.mkdir()
        with copy._locked():
            copy._make_private(copy.data)
            where = f"host={source.socket} user=postgres"
            copy._run("pg_basebackup", ["-D", str(copy.data), "-d", where, "-c", "fast", "-X", "stream"])
        return copy


def forms(text: str) -> set[bytes]:
    """Return what a file has of a text, as it is or encoded; of base64, what is the same whatever is around it."""
    raw = text.encode()
    inner = {base64.b64encode(b"\0" * start + raw)[4 : 4 * ((start + len(raw)) // 3)] for start in range(3)}
    escaped = "".join(f"\\u{ord(each):04x}" for each in text).encode()
    wide = {text.encode(coding) for coding in ("utf-16-le", "utf-16-be")}
    return {raw, *inner, raw.hex().encode(), raw.hex().upper().encode(), escaped, *wide}


def contents(file: Path) -> Iterator[bytes]:
    """Yield what is in a file, also when it is unpacked."""
    raw = file.read_bytes()
    yield raw
    if raw[:2] == b"\x1f\x8b":
        yield gzip.decompress(raw)
    if raw[:4] == b"\x28\xb5\x2f\xfd":
        yield pa.input_stream(pa.py_buffer(raw), compression="zstd").read()
    if raw[:4] == b"PAR1":
        yield repr(pq.read_table(file).to_pylist()).encode()


def found(home: Path, texts: list[str]) -> dict[str, set[Path]]:
    """Return the files below a home with a text in any form."""
    seen: dict[str, set[Path]] = {text: set() for text in texts}
    searched = {text: forms(text) for text in texts}
    for file in home.rglob("*"):
        # a server that stops removes files meanwhile
        with suppress(FileNotFoundError):
            if file.is_file() and not file.is_symlink():
                for raw in contents(file):
                    for text, those in searched.items():
                        if any(form in raw for form in those):
                            seen[text].add(file.relative_to(home))
    return seen


def opens(copy: EmbeddedPostgres, keys: list[Path], envelope: Sealed) -> list[object]:
    """Return what a copy of the database and key files show of a sealed value."""
    with copy, psycopg.connect(copy.dsn("millrace")) as connection:
        wrapped = rows(
            connection, "select key_id, epoch, wrapped from event_store_keys.subject_keys where wrapped is not null"
        )
        ((name, epoch, key),) = [row for row in wrapped if row[0] == envelope.key_id]
    shown = list[object]()
    for file in keys:
        with suppress(ValueError):
            raw = decrypt(AESSIV(file.read_bytes()), key, name, str(epoch))
            shown.append(open_sealed(AESSIV(raw), envelope["$sealed"]))
    return shown


def append_everywhere(deployment: Deployment, sealed: list[str], refused: str, plain: str, folder: Path) -> None:
    """Append sealed values and a plain name by a client, gathered appends, an import; in each way a refused value."""
    with psycopg.connect(deployment.dsn, autocommit=True) as connection:
        register_shop(PlatformStore(connection))
        client = EventStore(connection, sealer=Sealer.from_folder(deployment.home / "keys"))
        name = CustomerRegistered(name=plain)
        client.append("customer", PERSON, name, EmailGiven(customer_id=PERSON, email=sealed[0]))
        client.append("customer", OTHER, EmailGiven(customer_id=OTHER, email=letters()))

        async def gathered() -> None:
            async with await psycopg.AsyncConnection.connect(deployment.dsn, autocommit=True) as shared:
                store = AsyncEventStore(shared, sealer=Sealer.from_folder(deployment.home / "keys"))
                given = [EmailGiven(customer_id=PERSON, email=text) for text in sealed[1:3]]
                await asyncio.gather(*(store.append("customer", PERSON, each) for each in given))

        asyncio.run(gathered())
        ProducerStore(connection).register_producer("p")
        data = json.dumps({"customer_id": PERSON, "email": refused})
        for way in STORES:
            if way is not append_from_a_table:
                with pytest.raises(psycopg.Error):
                    way(connection, event(decider="customer", decider_id=PERSON, event="email_given", data=data))
        # an export of another store's envelopes
        envelope = value(connection, ENVELOPE)
    file = folder / "log.jsonl"
    file.write_text(
        json.dumps({"id": OTHER, "event": "email_given", "data": {"customer_id": PERSON, "email": envelope}})
    )
    log = ImportedLog(file, "customer", Columns(("id",), "event", data="data"))
    assert import_events(deployment.dsn, log, rejects=deployment.home / "rejects.jsonl").appended == 1


@subscription(view="failing_mails", deciders=["customer"], events=["email_given"])
def failing(delivery: Delivery) -> None:
    raise ValueError(f"no mail to {delivery.data['email']}")


@pytest.fixture
def home() -> Iterator[Path]:
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-proof-") as folder:
        yield Path(folder) / "home"
        EmbeddedPostgres(Path(folder) / "home" / "postgres").stop()


@pytest.mark.timeout(1200)
def test_no_file_shows_what_was_forgotten(home: Path, tmp_path: Path) -> None:
    postgres, sealed, plain = EmbeddedPostgres(home / "postgres"), [letters() for _ in range(3)], letters()
    refused = letters()
    with postgres, psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("alter system set archive_mode = on")
        admin.execute(f"alter system set archive_command = '{ARCHIVING}'")
    with started(home, more={"MILLRACE_SIMULATE": "0", "MILLRACE_DECLARATIONS": EXAMPLE}) as deployment:

        def command(*words: object) -> str:
            # the commands find the keys of the home by themselves
            return ran(MILLRACE, *words, env=deployment.env).stdout

        append_everywhere(deployment, sealed, refused, plain, tmp_path)
        counters, dead = consumed(deployment.dsn, failing)
        assert (counters.failed, len(dead)) == (2, 2)
        built = "select name, email::text from read_models.customers where email is not null order by customer_id"
        ((name, email), (_, other)) = until(lambda: deployment.rows(built), lambda rows: len(rows) == 2)
        assert (name, "$sealed" in email, "$sealed" in other) == (plain, True, True)
        for partition in range(16):
            archive_partition(deployment.dsn, home / "archive", partition, tail=True)
        command("backup", home / "backups" / "before")
        before = BaseBackup.taken(postgres, home / "base_before")
        ((data,),) = deployment.rows(ENVELOPE)
        shutil.copytree(home / "keys", tmp_path / "keys")
        command("privacy", "forget", f"customer:{PERSON}", "--reason", "request 812")
        command("privacy", "rotate")
        command("backup", home / "backups" / "after")
        BaseBackup.taken(postgres, home / "base_after")
        deployment.rows("select pg_switch_wal()::text")
        wait_until(
            lambda: deployment.rows(
                "select last_archived_wal from pg_stat_archiver where last_archived_wal is not null"
            ),
            "WAL is archived",
        )
        deployment.stop()
    assert opens(before, [*(tmp_path / "keys").glob("epoch-*.key")], Sealed(data)) == [sealed[0]]
    keys = [*home.rglob("epoch-*.key")]
    assert ([file.name for file in keys], opens(before, keys, Sealed(data))) == (["epoch-2.key"], [])
    # planted last, in each form and packing that a file may have
    planted = letters()
    (home / "planted").mkdir()
    for number, form in enumerate([*forms(planted)]):
        (home / "planted" / str(number)).write_bytes(form)
    for packed, pack in {"gz": gzip.compress, "zst": pa.Codec("zstd").compress}.items():
        (home / "planted" / packed).write_bytes(pack(planted.encode()))
    seen = found(home, [planted, plain, refused, *sealed])
    assert seen[planted] == {file.relative_to(home) for file in (home / "planted").iterdir()}
    places = {"postgres/data/base", "postgres/data/pg_wal", "postgres/data/archived_wal", "archive", "backups/before/log",
              "backups/after/log", "base_before/data/base", "base_after/data/base"}  # fmt: skip
    assert {place for place in places if not any(file.is_relative_to(place) for file in seen[plain])} == set()
    assert [seen[text] for text in (refused, *sealed)] == [set(), set(), set(), set()]
