"""`millrace privacy …`: what it prints of keys, of a folder, and of what a forgetting does not reach."""

from pathlib import Path

import pytest

from millrace import NewEvent
from millrace.errors import InvalidSetting, UnknownSubject
from millrace.event_store.platform import PlatformStore
from millrace.personal import Plain, Sealer
from tests.support.command_line import cells, millrace
from tests.support.factories import rows


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


def test_where_values_may_have_gone_is_said(orders: PlatformStore, dsn: str, keys: Path) -> None:
    millrace("privacy", "begin", dsn=dsn)
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
