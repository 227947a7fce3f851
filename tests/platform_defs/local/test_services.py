"""The services of `millrace up` and their environments; the services and rights of a package of declarations."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
import yaml

from millrace.errors import MillraceError
from millrace.platform_defs.dagster_internals.storage import PooledPostgresStorage
from millrace.platform_defs.local.services import (
    SEAL,
    Endpoints,
    environment,
    find_endpoints,
    free_port,
    prepare_home,
    services,
    spark_service,
)
from millrace.platform_defs.local.surroundings import Surroundings
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.settings import EXAMPLE, Settings

SERVICES = """
def services(here):
    here.env["OURS"] = "for all"
    assert not here.embedded
    return [here.run("{name}", "python", "-c", "pass", stop_s=3)]
"""


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Yield a function that writes a `services.py` and returns the names of all services."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> list[str]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "served"]:
            del sys.modules[name]
        (tmp_path / "served").mkdir(exist_ok=True)
        (tmp_path / "served" / "services.py").write_text(text)
        settings = Settings(home=tmp_path / "home", dsn="postgresql://somewhere", declarations="served")
        endpoints = Endpoints("postgresql://somewhere", "postgresql://dagster", tmp_path, "sc://elsewhere", None, None)
        listed = services(settings, endpoints)
        assert {service.cwd for service in listed} == {tmp_path}
        assert len({service.env.get("OURS") for service in listed}) == 1
        if "ours" in [service.name for service in listed]:
            assert listed[-1].argv[0] == sys.executable
            assert listed[-1].env["OURS"] == "for all"
        return [service.name for service in listed]

    yield write
    sys.modules.pop("served", None)


OURS = ["sequence", "code", "web", "daemon"]


def test_services_of_the_package_come_behind_ours(declare: Callable[[str], list[str]]) -> None:
    assert declare(SERVICES.format(name="ours")) == [*OURS, "ours"]


def test_a_broken_file_costs_services(declare: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture) -> None:
    for text, line, error in (
        ("import no_such_thing\n", 1, "ModuleNotFoundError"),
        ("def services(here):\n    return 1 / 0\n", 2, "ZeroDivisionError"),
        ("answer = 42\n", 0, "AttributeError"),
    ):
        with caplog.at_level(logging.ERROR):
            assert declare(text) == OURS
        assert f"The services of served are not started: {Path.cwd()}/served/services.py:{line}: {error}" in caplog.text
    # but a service with the name of one of ours is refused
    with pytest.raises(MillraceError, match=r"(?s)two services named 'web'.*served\.services"):
        declare(SERVICES.format(name="web"))


def sealed(text: str) -> str:
    return f"{text}{SEAL}{sha256(text.encode()).hexdigest()}\n"


def test_a_database_is_made_beside_the_embedded_store_only(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    here = Surroundings("postgresql://somewhere", tmp_path, tmp_path, dict(os.environ))
    with pytest.raises(MillraceError, match="no embedded Postgres to make the database 'beside'"):
        here.make_database("beside")
    there = Surroundings("postgresql://somewhere", tmp_path, tmp_path, dict(os.environ), postgres)
    assert there.embedded
    assert there.make_database("beside") == there.make_database("beside") == postgres.dsn("beside", "owner_of_beside")


def test_spark_has_a_token_of_its_own_and_is_told_no_dsn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_UI_TOKEN", "a-token-of-this-test")
    # runs execute users' code: they need not know where alerts go
    monkeypatch.setenv("MILLRACE_ALERT_URL", "https://hooks.example.com/a-token-of-this-test")
    monkeypatch.setenv("MILLRACE_ALERT_SECRET", "whsec_a-token-of-this-test")
    # secrets of pushes are for runs
    monkeypatch.setenv("MILLRACE_PUSH_SECRET_CRM", "crm.example.com a-token-of-this-test")
    keys = tmp_path / "keys"
    settings = Settings(home=tmp_path, dsn="postgresql://u:hunter2@somewhere/x", port=free_port(), cores=3, keys=keys)
    endpoints = Endpoints(
        str(settings.dsn), str(settings.dsn), tmp_path / "s", "sc://localhost:1", 1, None, spark_token="of-spark"
    )
    env = environment(settings, endpoints)
    spark = spark_service(settings, 1, {**env, "MILLRACE_CRM_DSN": str(settings.dsn)})
    with pytest.raises(ValueError, match="without SPARK_CONNECT_AUTHENTICATE_TOKEN would serve every account"):
        spark_service(settings, 1, {})
    assert "local[3]" in spark.argv
    # the machine's own name need not resolve
    assert spark.env["SPARK_LOCAL_HOSTNAME"] == "localhost"
    assert "hunter2" not in str(spark.env)
    assert "of-spark" not in str(spark.argv)
    listed = {service.name: service for service in services(settings, endpoints)}
    whose_each = {
        "UI_TOKEN": "web", "ALERT_URL": "sequence", "ALERT_SECRET": "sequence", "PUSH_SECRET_CRM": "code",
    }  # fmt: skip
    for variable, whose in whose_each.items():
        assert [name for name, service in listed.items() if f"MILLRACE_{variable}" in service.env] == [whose]
    assert {name for name, service in listed.items() if service.env.get("MILLRACE_KEYS") == str(keys)} == {*listed} - {
        "spark"
    }
    for service in listed.values():
        assert not any(word in str(service.argv) for word in ("hunter2", "of-spark", "a-token-of-this-test"))


@pytest.mark.parametrize("name", ["dagster.yaml", "workspace.yaml"])
def test_a_file_that_somebody_else_changed_is_never_overwritten(tmp_path: Path, name: str) -> None:
    settings = Settings(home=tmp_path, dsn=None)
    before = Endpoints("dsn", "dagster_dsn", tmp_path / "before", None, None, None)
    after = replace(before, code_socket=tmp_path / "after")
    file = tmp_path / "dagster" / name
    assert prepare_home(settings, before) == prepare_home(settings, after) == []
    ours = file.read_text()
    for text, kept in (
        (ours, []),
        # written by another version of Millrace
        (sealed("telemetry: {enabled: true}\n"), []),
        (f"# of this machine\n{ours}", [file]),
        (ours.replace("enabled: true", "enabled: false", 1) + "# ours", [file]),
        ("telemetry: {enabled: true}\n", [file]),
        ("", [file]),
    ):
        file.write_text(text)
        assert prepare_home(settings, after) == kept, text
        assert file.read_text() == (text if kept else ours), text
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert prepare_home(settings, after) == [file]
    assert not (tmp_path / "elsewhere").exists()
    file.unlink()
    assert prepare_home(settings, after) == []
    assert file.read_text() == ours
    assert yaml.safe_load(ours)


def test_the_users_postgres_gets_a_schema_for_dagster(tmp_path: Path, dsn: str) -> None:
    endpoints = find_endpoints(Settings(home=tmp_path, dsn=dsn), None)
    storage = PooledPostgresStorage(endpoints.dagster_dsn)
    assert storage.run_storage.get_runs() == []
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select to_regclass('dagster.runs')::text, to_regclass('public.runs')")
        assert found.fetchone() == ("dagster.runs", None)


def test_the_examples_customers_are_beside_the_embedded_store(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-") as home, EmbeddedPostgres(Path(home) / "postgres") as postgres:
        settings = Settings(home=Path(home), dsn=None, declarations=EXAMPLE)
        endpoints = find_endpoints(settings, postgres)
        for _ in range(2):
            listed = services(settings, endpoints)
        assert [service.name for service in listed] == [*OURS, "unpaid", "simulate", "crm"]
        assert {service.env["MILLRACE_CRM_DSN"] for service in listed} == {postgres.dsn("crm", "owner_of_crm")}
        assert {service.env["MILLRACE_DECLARATIONS"] for service in listed} == {"millrace.examples.shop"}
        # no Spark is started where SPARK_REMOTE names one elsewhere
        assert {service.env["SPARK_REMOTE"] for service in listed} == {"sc://elsewhere:15002"}
        with psycopg.connect(postgres.dsn("crm")) as connection:
            assert connection.execute("select count(*) from customers").fetchone() == (0,)
            assert connection.execute("show wal_level").fetchone() == ("logical",)

        with monkeypatch.context() as quiet:
            quiet.setenv("MILLRACE_SIMULATE", "false")
            assert [service.name for service in services(settings, endpoints)] == OURS

        monkeypatch.setenv("MILLRACE_CRM_DSN", dsn)
        listed = services(settings, endpoints)
        assert {service.env["MILLRACE_CRM_DSN"] for service in listed} == {dsn}
        # the simulator does not write into a database that is not ours
        assert "crm" not in [service.name for service in listed]
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select to_regclass('customers')").fetchone() == (None,)
    monkeypatch.delenv("MILLRACE_CRM_DSN")
    # and not into a store that is not ours, even if the example is declared for it
    for declarations in (None, "millrace.examples.shop"):
        theirs = Settings(home=Path(home), dsn=dsn, declarations=declarations)
        listed = services(theirs, find_endpoints(theirs, None))
        assert [service.name for service in listed] == OURS
        assert all("MILLRACE_CRM_DSN" not in service.env for service in listed)
        assert {service.env.get("MILLRACE_DECLARATIONS") for service in listed} == {declarations}
