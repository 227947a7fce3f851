"""Keys of people in Dagster: what is shown, when a rotation runs, and which checks are red."""

import socket
from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations
from millrace.assets.privacy import KEY
from millrace.event_store.platform import PlatformStore
from millrace.personal.folder import KeyFolder, opened_folder
from millrace.personal.values import StoredKey
from millrace.platform_defs.loading import build_defs
from millrace.platform_defs.schedules import rotate_keys_weekly
from tests.support.customers import begin, forget, move, sealing
from tests.support.elsewhere import postgres_at

PEOPLE = ("c-1", "c-2", "c-3")


@pytest.fixture
def defs(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setenv("MILLRACE_KEYS", str(tmp_path / "keys"))
    return build_defs(declarations=Declarations(), resources={"postgres": postgres_at(dsn)})


def shown(defs: dg.Definitions, instance: dg.DagsterInstance) -> tuple[dict[str, object], dict[str, object]]:
    """Return the metadata of the asset, and those of the checks that are red."""
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=[KEY])
    (told,) = result.asset_materializations_for_node("privacy__subjects")
    red = {
        each.check_name: {name: entry.value for name, entry in each.metadata.items()}
        for each in result.get_asset_check_evaluations()
        if not each.passed
    }
    assert len(result.get_asset_check_evaluations()) == 2
    return {name: entry.value for name, entry in told.metadata.items()}, red  # type: ignore[return-value]


def tick(defs: dg.Definitions, dsn: str) -> dg.RunRequest | str:
    context = dg.build_schedule_context(
        resources={"postgres": postgres_at(dsn)}, repository_def=defs.get_repository_def()
    )
    found = rotate_keys_weekly.evaluate_tick(context)
    return found.run_requests[0] if found.run_requests else found.skip_message or ""


def begun(store: PlatformStore, folder: Path) -> KeyFolder:
    keys = begin(store, folder)
    for person in PEOPLE:
        move(sealing(store.connection, keys.path), person, f"{person}@a")
    return keys


def test_a_store_without_keys_shows_none_and_nothing_is_red(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore, defs: dg.Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.partition_info()
    assert shown(defs, instance) == ({"living": 0, "forgotten": 0, "epochs": 0, "holders": []}, {})
    assert tick(defs, dsn) == "No key of a person was forgotten since the last rotation."
    monkeypatch.delenv("MILLRACE_KEYS")
    assert "MILLRACE_KEYS is not set" in str(tick(defs, dsn))
    assert shown(defs, instance)[1] == {}


def test_a_rotation_runs_after_a_forgetting_until_it_is_confirmed(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore, defs: dg.Definitions, tmp_path: Path
) -> None:
    keys = begun(store, tmp_path / "keys")
    assert "No key of a person was forgotten" in str(tick(defs, dsn))
    forget(store.connection, keys, f"customer:{PEOPLE[0]}")
    assert isinstance(tick(defs, dsn), dg.RunRequest)
    assert defs.resolve_job_def("rotate_keys").execute_in_process(instance=instance).success
    assert not (tmp_path / "keys" / "epoch-1.key").exists()
    holder = f"{socket.gethostname()} {tmp_path / 'keys'}"
    assert shown(defs, instance) == ({"living": 2, "forgotten": 1, "epochs": 2, "holders": [holder]}, {})
    assert isinstance(tick(defs, dsn), str)
    store.connection.execute("insert into event_store_keys.holders values ('app-1', '/keys', '{1}', now())")
    store.connection.execute("select event_store_private.confirm_key_epochs()")
    assert "not by: app-1 /keys." in str(shown(defs, instance)[1]["rotation_is_confirmed"])
    store.connection.execute("update event_store_keys.epochs set destroyed_at = null")
    assert "half done, held by" in str(shown(defs, instance)[1]["rotation_is_confirmed"])
    store.connection.execute("delete from event_store_keys.subject_keys where wrapped is null")
    assert isinstance(tick(defs, dsn), dg.RunRequest)


def test_a_forgotten_key_that_opens_is_told(
    instance: dg.DagsterInstance, store: PlatformStore, defs: dg.Definitions, tmp_path: Path
) -> None:
    keys = begun(store, tmp_path / "keys")
    name, wrapped = store.connection.execute(
        "select key_id, wrapped from event_store_keys.subject_keys where subject_mac = %s", (keys.mac("customer:c-1"),)
    ).fetchall()[0]
    raw = keys.unwrapped([StoredKey(name, 1, wrapped)])
    forget(store.connection, keys, "customer:c-1")
    assert shown(defs, instance)[1] == {}
    # a store that was set back to an earlier time
    back = "update event_store_keys.subject_keys set wrapped = %s, forgotten_at = %s where key_id = %s"
    store.connection.execute(back, (wrapped, None, name))
    opens = {"forgotten_keys_open_nothing": {"tried": 1, "keys that open": [name]}}
    assert shown(defs, instance)[1] == opens
    store.connection.execute(back, (None, "2026-01-31", name))
    assert defs.resolve_job_def("rotate_keys").execute_in_process(instance=instance).success
    assert shown(defs, instance)[1] == {}
    # a copy that the folder kept
    last = opened_folder(keys.path)
    last.note_living(last.wrapped(raw))
    assert shown(defs, instance)[1] == opens
