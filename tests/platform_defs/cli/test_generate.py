"""`millrace generate dbt`: what the file says, and that dbt's tests of it find wrong rows; `docs/dbt.md` runs it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.assets.declarations import declared
from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from tests.platform_defs.cli.conftest import Declare
from tests.support.command_line import millrace
from tests.support.running.programs import ran

# keys with a word of SQL, of one column and of two
MODELS = """
from millrace import count, field, read_model

@read_model(view="groups", deciders=["permit"], key=["group"])
class Groups:
    '''One row per group.'''

    group = field("data.group")
    steps = count()

@read_model(view="days", deciders=["permit"], key=["group", "day"])
class Days:
    '''One row per group and day.'''

    group = field("data.group")
    day = field("data.day", type="date")
    steps = count()
"""
PROFILE = """
tried:
  target: store
  outputs:
    store: {{type: postgres, host: "{host}", port: 5432, user: "{user}", password: "", dbname: "{dbname}", schema: tried}}
"""


def generated(file: Path, *arguments: str) -> dict[str, Any]:
    millrace("generate", "dbt", file, *arguments)
    (source,) = yaml.safe_load(file.read_text())["sources"]
    assert (source["name"], source["schema"]) == ("read_models", "read_models")
    return {table["name"]: table for table in source["tables"]}


def key_tests(table: dict[str, Any]) -> dict[str, list[str]]:
    return {column["name"]: column["data_tests"] for column in table["columns"] if "data_tests" in column}


def test_each_read_model_and_each_rollup_is_a_described_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "millrace.examples.shop")
    tables = generated(tmp_path / "sources.yml")
    shop = declared("millrace.examples.shop")
    assert [*tables] == sorted([*shop.models, *shop.rollups])
    for model in (*shop.models.values(), *shop.rollups.values()):
        table = tables[model.name]
        assert table["description"] == model.description
        assert table["config"]["meta"]["dagster"]["asset_key"] == ["read_models", model.name]
        assert all(column["description"] for column in table["columns"])
        assert {each["name"]: each["data_type"] for each in table["columns"]} == model.public_columns()
    assert key_tests(tables["orders"]) == {"order_id": ["unique", "not_null"]}
    assert key_tests(tables["crm_customer_history"]) == {"record_key": ["not_null"], "seq": ["not_null"]}
    # an order may have no status
    assert key_tests(tables["orders_by_status"]) == {"status": ["unique"]}


def test_a_stale_file_is_told_and_the_same_models_give_the_same_file(declare: Declare, tmp_path: Path) -> None:
    declare(read_models=MODELS)
    file = tmp_path / "sources.yml"
    with pytest.raises(MillraceError, match="differs from what is declared"):
        generated(file, "--check")
    assert not file.exists()
    generated(file)
    first = file.read_bytes()
    generated(file)
    assert file.read_bytes() == first
    generated(file, "--check")
    declare(read_models=MODELS.replace("and day.", "and date."))
    with pytest.raises(MillraceError, match="differs from what is declared") as stale:
        generated(file, "--check")
    assert stale.value.hint == f"Run: millrace generate dbt {file}"
    assert file.read_bytes() == first
    with pytest.raises(MillraceError, match="cannot be read or written: No such file"):
        generated(tmp_path / "nowhere" / "sources.yml")


def test_nothing_is_written_while_a_file_fails_or_declares_nothing(declare: Declare, tmp_path: Path) -> None:
    for models, refusal in ((f"{MODELS}\n1 / 0\n", r"read_models\.py:19: ZeroDivisionError"), ("", "No read model is")):
        declare(read_models=models)
        with pytest.raises(MillraceError, match=refusal):
            generated(tmp_path / "sources.yml")
        assert not (tmp_path / "sources.yml").exists()


ROWS = """
drop table if exists read_models.groups, read_models.days;
create table read_models.groups as select * from (values {groups}) g("group", steps);
create table read_models.days as select * from (values {days}) d("group", day, steps);
"""
GOOD_GROUPS, GOOD_DAYS = "('a', 1), ('b', 1)", "('a', date '2026-01-01', 1), ('a', '2026-01-02', 1)"


def test_dbt_finds_keys_that_are_twice_or_null(declare: Declare, store: PlatformStore, tmp_path: Path) -> None:
    declare(read_models=MODELS)
    generated(tmp_path / "sources.yml")
    (tmp_path / "models").mkdir()
    (tmp_path / "sources.yml").rename(tmp_path / "models" / "sources.yml")
    (tmp_path / "dbt_project.yml").write_text(
        "name: tried\nprofile: tried\nflags: {send_anonymous_usage_stats: false}\n"
    )
    at = store.connection.info
    (tmp_path / "profiles.yml").write_text(PROFILE.format(host=at.host, user=at.user, dbname=at.dbname))

    def faults(groups: str, days: str) -> int:
        store.connection.execute(ROWS.format(groups=groups, days=days).encode())
        dbt = (Path(sys.executable).with_name("dbt"), "test", "--store-failures", "--no-use-colors")
        said = ran(*dbt, code=None, cwd=tmp_path).stdout
        assert "TOTAL=5" in said, said
        return int(said.partition("ERROR=")[2].split()[0])

    assert faults(GOOD_GROUPS, GOOD_DAYS) == 0
    # keys that are twice; keys that are null
    assert faults("('a', 1), ('a', 2)", f"{GOOD_DAYS}, ('a', '2026-01-02', 2)") == 2
    assert faults(f"{GOOD_GROUPS}, (null, 1)", f"{GOOD_DAYS}, (null, null, 1)") == 3
