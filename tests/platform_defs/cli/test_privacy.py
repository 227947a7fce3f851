"""`millrace privacy …`: what it prints of keys, of a folder, and of what a forgetting does not reach."""

from pathlib import Path

import pytest

from millrace import NewEvent
from millrace.assets.declarations import Declarations, Fault
from millrace.capture.declaration import Capture, CapturedTable
from millrace.errors import InvalidSetting, UnknownSubject
from millrace.event_store.platform import PlatformStore
from millrace.personal import Personal, Plain, Sealer
from millrace.platform_defs.cli import privacy as privacy_commands
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.command_line import cells, millrace
from tests.support.factories import rows

__all__ = ["captured", "new_source"]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_a_person_is_forgotten_and_comes_back(orders: PlatformStore, dsn: str, keys: Path) -> None:
    for _ in range(2):
        assert f"The keys of {keys}, epoch 1, are those of the store." in millrace("privacy", "begin", dsn=dsn)
    sealing = PlatformStore(orders.connection, sealer=Sealer.from_folder(keys))
    sealing.append("order", "o-1", NewEvent("placed", {"email": Plain("customer:c-7", "eve@example.com")}))
    status = millrace("privacy", "status", dsn=dsn)
    assert (cells(status)[-1][2:4], f"The folder {keys} is that of the store." in status) == (["1", "0"], True)
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
    assert cells(millrace("privacy", "status", dsn=dsn))[-1][2:4] == ["0", "1"]
    assert "wrapped by epoch-2.key, and the file before is destroyed" in millrace("privacy", "rotate", dsn=dsn)
    assert not (keys / "epoch-1.key").exists()
    assert f"Key {key} stays gone, with all that it sealed." in millrace(*readmit, dsn=dsn)


def test_what_cannot_be_done_is_said(dsn: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be read: No such file" in millrace("privacy", "status", dsn=dsn)
    millrace("privacy", "begin", dsn=dsn)
    for verb in ("forget", "readmit"):
        assert "Missing option '--reason'" in millrace("privacy", verb, "customer:c-7", dsn=dsn, code=2)
    with pytest.raises(UnknownSubject, match="<kind>:<id>"):
        millrace("privacy", "forget", "customer:c-8", "--reason", "asked", dsn=dsn)
    (keys / "epoch-1.key").write_bytes(bytes(64))
    assert "does not fit the store" in millrace("privacy", "status", dsn=dsn)
    monkeypatch.delenv("MILLRACE_KEYS")
    assert "MILLRACE_KEYS is not set: no folder was compared." in millrace("privacy", "status", dsn=dsn)
    with pytest.raises(InvalidSetting, match="MILLRACE_KEYS is not set"):
        millrace("privacy", "begin", dsn=dsn)


def test_forgetting_says_which_sources_still_have_the_person(
    captured: Captured, dsn: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    millrace("privacy", "begin", dsn=dsn)
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
