"""`millrace privacy …`: what it prints of keys, of a folder, and of what a forgetting does not reach."""

import re
import socket
from pathlib import Path

import pytest

from millrace import NewEvent
from millrace.assets.declarations import Declarations, Fault
from millrace.capture.declaration import Capture, CapturedTable
from millrace.errors import InvalidSetting, MillraceError, UnknownSubject
from millrace.event_store.key_rotation import rotate
from millrace.event_store.platform import PlatformStore
from millrace.personal import Personal, Plain, Sealer
from millrace.platform_defs.cli import privacy as privacy_commands
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.command_line import cells, millrace
from tests.support.factories import rows, value

__all__ = ["captured", "new_source"]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_a_person_is_forgotten_and_comes_back(orders: PlatformStore, dsn: str, keys: Path) -> None:
    for _ in range(2):
        assert f"The keys of {keys}, epoch 1, are those of the store." in millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "eve@example.com")}))
    status = millrace("privacy", "status", dsn=dsn)
    assert (cells(status)[0][2:4], f"The folder {keys} is that of the store." in status) == (["1", "0"], True)
    forget, readmit = (("privacy", verb, "customer:c-7", "--reason", "request 812") for verb in ("forget", "readmit"))
    assert "customer:c-7 is not forgotten; nothing was changed." in millrace(*readmit, dsn=dsn)
    first, second = millrace(*forget, dsn=dsn), millrace(*forget, dsn=dsn)
    ((key, gone),) = rows(
        orders.connection,
        "select key_id, to_char(forgotten_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') from event_store_keys.subject_keys",
    )
    assert first == second
    for told in (
        f"customer:c-7 is forgotten: its key {key} is gone since {gone} UTC.",
        "one that had it in memory keeps it for 5 minutes at most",
        "still hold the key, wrapped by epoch-1.key: backups, files of standbys, the WAL, dead rows.",
        "until `millrace privacy rotate` destroys the file",
    ):
        assert told in first
    orders.connection.execute("update event_store_keys.subject_keys set forgotten_at = '2030-01-31 12:00:00+00'")
    gone = f"customer:c-7 is forgotten: its key {key} is gone since 2030-01-31 12:00:00 UTC, in all copies:"
    assert f"{gone} planned for 2030-02-04 04:30:00 UTC." in millrace("privacy", "show", "customer:c-7", dsn=dsn)
    assert cells(millrace("privacy", "status", dsn=dsn))[0][2:4] == ["0", "1"]
    assert "wrapped by epoch-2.key, and the file before is destroyed" in millrace("privacy", "rotate", dsn=dsn)
    assert not (keys / "epoch-1.key").exists()
    status = millrace("privacy", "status", dsn=dsn)
    assert f"Holder {socket.gethostname()} {keys}: epochs 2" in status
    confirmed = cells(status)[0][4].removeprefix("confirmed ")
    assert f"{gone} confirmed at {confirmed} UTC." in millrace("privacy", "show", "customer:c-7", dsn=dsn)
    assert f"Key {key} stays gone, with all that it sealed." in millrace(*readmit, dsn=dsn)
    assert "customer:c-7 has no key" in millrace("privacy", "show", "customer:c-7", dsn=dsn)


def test_show_counts_the_events_of_a_person(orders: PlatformStore, dsn: str, keys: Path) -> None:
    millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    for person, event in (("c-7", "placed"), ("c-7", "paid"), ("c-8", "paid"), ("c-7", "paid")):
        sealing.append("order", "o-1", NewEvent(event, {"deep": [{"email": Plain(f"customer:{person}", "a@a")}] * 2}))
    told = millrace("privacy", "show", "customer:c-7", dsn=dsn)
    assert re.search(r"customer:c-7 has the key \S{22} since .* UTC, wrapped by epoch-1\.key\.", told)
    assert cells(told) == [["order", "paid", "2"], ["order", "placed", "1"]]


def test_a_copy_of_the_keys_is_a_holder(orders: PlatformStore, dsn: str, keys: Path, tmp_path: Path) -> None:
    millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "a@a")}))
    millrace("privacy", "forget", "customer:c-7", "--reason", "asked", dsn=dsn)
    copy = tmp_path / "custodian" / "keys"
    assert f"{copy} has the keys at epoch 1." in millrace("privacy", "backup-keys", copy, dsn=dsn)
    assert copy.stat().st_mode & 0o777 == 0o700
    assert {each.name: each.stat().st_mode & 0o777 for each in copy.iterdir()} == dict.fromkeys(
        ("subjects.key", "epoch-1.key", "forgotten.list"), 0o600
    )
    (copy / ".epoch-9.key").touch()
    # the next file is kept apart before a key depends on it
    with pytest.raises(MillraceError, match=rf"(?s)lack {keys}/epoch-2\.key.*{copy}.*Copy the file there"):
        rotate(dsn, keys, wait_s=0)
    millrace("privacy", "backup-keys", copy, dsn=dsn)
    millrace("privacy", "rotate", dsn=dsn)
    assert f"epoch-1.key is destroyed here, and not by: {socket.gethostname()} {copy}." in " ".join(
        millrace("privacy", "status", dsn=dsn).split()
    )
    millrace("privacy", "backup-keys", copy, dsn=dsn)
    assert {each.name for each in copy.iterdir()} == {"subjects.key", "epoch-2.key", "forgotten.list"}
    assert "is destroyed here" not in millrace("privacy", "status", dsn=dsn)
    retire = ("privacy", "retire", socket.gethostname(), copy, "--reason", "the stick was burnt")
    assert "no holder of keys any more" in millrace(*retire, dsn=dsn)
    assert "no holder of keys; nothing was changed" in millrace(*retire, dsn=dsn)
    assert "the stick was burnt" in millrace("show", "audit", dsn=dsn)
    for within, file in (("data", "PG_VERSION"), ("saved", "manifest.json")):
        (tmp_path / within).mkdir()
        (tmp_path / within / file).touch()
        with pytest.raises(InvalidSetting, match=f"is within {tmp_path / within}"):
            millrace("privacy", "backup-keys", tmp_path / within / "keys", dsn=dsn)
    with pytest.raises(InvalidSetting, match=f"is within {keys}"):
        millrace("privacy", "backup-keys", keys, dsn=dsn)
    (copy / "subjects.key").write_bytes(bytes(32))
    with pytest.raises(InvalidSetting, match="has keys of another store"):
        millrace("privacy", "backup-keys", copy, dsn=dsn)


def test_a_store_of_an_earlier_time_takes_its_keys(orders: PlatformStore, dsn: str, keys: Path) -> None:
    millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "a@a")}))
    wrapped = value(orders.connection, "select wrapped from event_store_keys.subject_keys")
    millrace("privacy", "forget", "customer:c-7", "--reason", "asked", dsn=dsn)
    orders.connection.execute("update event_store_keys.subject_keys set forgotten_at = null, wrapped = %s", (wrapped,))
    assert "1 keys in" in millrace("privacy", "status", dsn=dsn)
    assert "1 that were forgotten since are forgotten again" in millrace("privacy", "restore-keys", dsn=dsn)
    assert "1 keys in" not in millrace("privacy", "status", dsn=dsn)


def test_where_values_may_have_gone_is_said(orders: PlatformStore, dsn: str, keys: Path) -> None:
    millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "eve@example.com")}))
    forget = ("privacy", "forget", "customer:c-7", "--reason", "asked")
    orders.register_view("all")
    assert "Values may have gone" not in millrace(*forget, dsn=dsn)
    mark = {"x-personal": {"of": "id", "kind": "customer"}}
    orders.register_event_schema("order", "paid", {"properties": {"id": {}, "email": mark}})
    for name, settings in {
        "mails": {"events": ["paid"]},
        "opened": {"edge_function_url": "https://example.com", "push_unseal": True},
        "sealed": {"edge_function_url": "https://example.com"},
        "bulk": {"mode": "bulk"},
        "others": {"events": ["placed"]},
        "invoices": {"deciders": ["invoice"]},
    }.items():
        orders.register_view(name, **settings)  # type: ignore[arg-type]
    assert "data of their own: all, mails, opened. Erase" in millrace(*forget, dsn=dsn)


def test_what_cannot_be_done_is_said(dsn: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be read: No such file" in millrace("privacy", "status", dsn=dsn)
    millrace("privacy", "init", dsn=dsn)
    for verb in ("forget", "readmit"):
        assert "Missing option '--reason'" in millrace("privacy", verb, "customer:c-7", dsn=dsn, code=2)
    with pytest.raises(UnknownSubject, match="<kind>:<id>"):
        millrace("privacy", "forget", "customer:c-8", "--reason", "asked", dsn=dsn)
    (keys / "epoch-1.key").write_bytes(bytes(64))
    assert "does not fit the store" in millrace("privacy", "status", dsn=dsn)
    monkeypatch.delenv("MILLRACE_KEYS")
    assert "MILLRACE_KEYS is not set: no folder was compared." in millrace("privacy", "status", dsn=dsn)
    with pytest.raises(InvalidSetting, match="MILLRACE_KEYS is not set"):
        millrace("privacy", "init", dsn=dsn)


def test_forgetting_says_which_sources_still_have_the_person(
    captured: Captured, dsn: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    millrace("privacy", "init", dsn=dsn)
    sealing = PlatformStore(captured.store, sealer=Sealer.from_folder(keys))
    sealing.register_decider_event("order", "placed", "")
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "eve@example.com")}))
    captured.run(
        'create table "Customers" (id text primary key, mail text)',
        "create table orders (id int primary key, customer text, mail text, note text)",
        "create table numbers (id int primary key, mail text)",
        """insert into "Customers" values ('c-7', 'x')""",
        "insert into orders values (1, 'c-8', 'x', 'x'), (2, 'c-7', null, null)",
    )
    mine = Personal(of="customer", kind="customer")
    tables = (
        CapturedTable("Customers", personal={"mail": Personal(of="id", kind="customer")}),
        CapturedTable("orders", personal={"mail": mine, "note": mine}),
        CapturedTable("numbers", personal={"mail": Personal(of="id", kind="customer")}),
        CapturedTable("items", personal={"name": "id"}),
    )

    def gone() -> str:
        raise KeyError("CRM_DSN")

    found = Declarations(
        captures={
            "away": Capture("away", lambda: "postgresql://me:secret@127.0.0.1:1/x", tables),
            "lost": Capture("lost", gone, tables),
            "plain": Capture("plain", gone, (CapturedTable("t"),)),
            "shop": Capture("shop", lambda: captured.source.dsn, tables),
        },
        faults=(Fault("captures", "crm", Path("captures/crm.py"), 3, "NameError: x"),),
    )
    monkeypatch.setattr(privacy_commands, "declared_beside", lambda *_: found)
    said = millrace("privacy", "forget", "customer:c-7", "--reason", "asked", dsn=dsn, columns=400).splitlines()
    assert said[0].startswith("customer:c-7 is forgotten")
    assert "its file does not load: captures/crm.py:3: NameError: x" in said[2]
    assert said[3].startswith("The source of capture away was not asked for customer:c-7: The source database does not")
    assert "secret" not in "".join(said)
    assert [line for line in said if "lost was not asked for customer:c-7: 'CRM_DSN'" in line]
    told = "The source of capture shop still has customer:c-7; its values come sealed, without content, from now on."
    assert [line.removeprefix(told) for line in said if line.startswith(told)] == [
        """ To delete them there: delete from "public"."Customers" where "id" = 'c-7';""",
        """ To delete them there: delete from "public"."orders" where "customer" = 'c-7';""",
    ]
    assert "plain" not in "".join(said)
