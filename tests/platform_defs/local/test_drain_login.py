"""The login that drains the embedded store, and the other logins that may enter its databases."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millrace.errors import MillraceError
from millrace.event_store.migrations import migrate
from millrace.platform_defs.cli.options import rows_dsn
from millrace.platform_defs.local.services import Endpoints, find_endpoints
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.postgres.logins import DRAIN, owned_database, prepare_store, too_mighty
from millrace.read_models.stored.merge import StagedRows, merge_batch, next_batch
from millrace.read_models.stored.versions import ensure_version, reset_model
from millrace.reports import replace_day
from millrace.settings import Settings
from tests.conftest import in_memory
from tests.support.building.drains import Everything
from tests.support.factories import at_once, rows

# planted code records each of its runs; it must be able to do nothing else
PLANTED = """
create table read_models.told (who text, superuser boolean, private text);
grant all on read_models.told to public;
create function read_models.planted() returns int language plpgsql as $$
declare
  _private text := 'no';
begin
  begin
    perform event_store_private.clock();
    _private := 'calls';
  exception when insufficient_privilege then
    null;
  end;
  begin
    execute 'alter role mallory superuser';
    _private := 'became a superuser';
  exception when insufficient_privilege then
    null;
  end;
  insert into read_models.told
  select current_user, rolsuper, _private from pg_roles where rolname = current_user;
  return 1;
end $$;
create function read_models.fires() returns trigger language plpgsql as $$
begin
  perform read_models.planted();
  return null;
end $$;
set role event_store_owner;
create trigger planted after insert or update on read_models.everything_state for each statement execute function read_models.fires();
alter table read_models.everything_state add column planted int default read_models.planted();
reset role;
"""
# a server before `prepare_store`: the login exists without any right
UNMADE = """
revoke event_store_owner from millrace_drain;
alter role millrace_drain nologin createdb;
grant connect on database millrace, postgres, template1 to public;
drop schema reports;
"""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[Endpoints]:
    """Yield the embedded store as `millrace up` makes it; each test leaves its logins and its schema as they were."""
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="millrace-", dir=in_memory()) as home,
        EmbeddedPostgres(Path(home) / "postgres") as postgres,
    ):
        patch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
        found = find_endpoints(Settings(home=Path(home), dsn=None), postgres)
        migrate(found.operator_dsn)
        for _ in range(2):
            prepare_store(postgres, "millrace")
        yield found


def connect(dsn: str, user: str | None = None) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **({"user": user} if user else {})), autocommit=True)


def test_what_an_owner_hangs_on_a_table_has_the_drains_rights(endpoints: Endpoints) -> None:
    with connect(endpoints.operator_dsn) as operator, connect(endpoints.dsn) as drain:
        ensure_version(drain, Everything)
        operator.execute("create role mallory login in role event_store_owner")
        with connect(endpoints.dsn, "mallory") as mallory:
            mallory.execute(PLANTED.encode())
        operator.execute("delete from read_models.told")
        batch = next_batch(drain)
        drain.execute(
            "insert into read_models.everything_staging (partition, thing_id, batch, attempt) values (3, 'a', %s, 1)",
            (batch,),
        )
        assert merge_batch(drain, Everything, batch, [StagedRows(1, 1)]) == 1
        # once for the default, twice for the trigger: a merge inserts and updates
        assert rows(drain, "select count(*) from read_models.told") == [(3,)]
        told = rows(drain, "select distinct who, superuser, private from read_models.told")
        assert told == [(DRAIN, False, "no")]
        # removing the model as an operator does not run it either
        reset_model(operator, Everything)
        assert rows(drain, "select distinct who from read_models.told") == [(DRAIN,)]


def test_the_drains_login_is_an_owner_of_the_store_and_nothing_else(endpoints: Endpoints) -> None:
    with connect(endpoints.dsn) as drain:
        assert rows(
            drain,
            """
            select rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls,
              (select array_agg(roleid::regrole::text) from pg_auth_members where member = r.oid)
            from pg_roles r where rolname = current_user
            """,
        ) == [(False, False, False, False, False, ["event_store_owner"])]
        # runs compare the schema with the code, and a report makes its table
        assert migrate(endpoints.dsn).applied == ()
        columns = {"day": ("date", "The day."), "n": ("int", "A number.")}
        assert replace_day(drain, "reports.daily", columns, date(2026, 1, 5), [{"n": 1}]) == 1
        drain.execute("select from event_store_platform.sequence_events()")
        drain.execute("drop table reports.daily")


def test_a_login_without_a_role_enters_no_database(endpoints: Endpoints) -> None:
    """Such a login could hold locks that others wait for, and take a session of theirs."""
    assert endpoints.postgres is not None
    with connect(endpoints.operator_dsn) as operator:
        operator.execute("create role stranger login")
        operator.execute("create role shop login in role event_store_writer")
    databases = ("millrace", "dagster", "crm", "postgres", "template1")
    owned_database(endpoints.postgres, "crm", captured=True)
    for user in ("stranger", "owner_of_crm"):
        for database in set(databases) - {"crm" if user == "owner_of_crm" else ""}:
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                connect(endpoints.postgres.dsn(database, user))
    # logins of the store enter no other database
    for user in ("shop", DRAIN):
        for database in databases[1:]:
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                connect(endpoints.postgres.dsn(database, user))
    with connect(endpoints.dsn, "shop") as shop:
        assert rows(shop, "select * from event_store.stream_head('order', 'o-1')") == []


def test_commands_that_build_take_the_drains_login(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_DSN", raising=False)
    assert endpoints.postgres is not None
    monkeypatch.setenv("MILLRACE_HOME", str(endpoints.postgres.directory.parent))
    assert conninfo_to_dict(rows_dsn(None))["user"] == DRAIN
    with pytest.raises(MillraceError, match="is a superuser"):
        rows_dsn(endpoints.operator_dsn)


def test_a_run_that_may_not_migrate_names_the_command(endpoints: Endpoints) -> None:
    with connect(endpoints.operator_dsn) as operator:
        operator.execute("update event_store.migrations set name = 'another version' where version = 0")
    with pytest.raises(MillraceError, match="millrace migrate") as refused:
        migrate(endpoints.dsn)
    assert DRAIN in refused.value.message
    migrate(endpoints.operator_dsn)


def test_a_login_of_your_own_that_may_too_much_is_named_in_one_line(endpoints: Endpoints) -> None:
    assert too_mighty(endpoints.dsn) is None
    said = str(too_mighty(endpoints.operator_dsn))
    assert "postgres of the store is a superuser" in said
    assert "\n" not in said
    with connect(endpoints.operator_dsn) as operator:
        operator.execute("create role migrator login in role event_store_owner")
        operator.execute("alter schema event_store owner to migrator")
        assert "owns the schema event_store" in str(too_mighty(make_conninfo(endpoints.dsn, user="migrator")))
        operator.execute("alter schema event_store owner to current_user")


STATE = """
select 'role', rolname, rolcanlogin::text || rolsuper || rolcreatedb || rolcreaterole || rolreplication || rolbypassrls
from pg_roles where rolname = 'millrace_drain' or starts_with(rolname, 'owner_of_')
union all select 'member', member::regrole::text, roleid::regrole::text || admin_option from pg_auth_members
union all select 'database', datname, pg_get_userbyid(datdba) || coalesce(datacl::text, 'all') from pg_database
union all select 'schema', nspname, nspowner::regrole::text from pg_namespace where nspname = 'reports'
order by 1, 2, 3
"""


def test_several_that_make_the_logins_at_once_make_them_once(endpoints: Endpoints) -> None:
    postgres = endpoints.postgres
    assert postgres is not None
    owned_database(postgres, "crm", captured=True)
    with connect(endpoints.operator_dsn) as operator:
        made = rows(operator, STATE)
        operator.execute(UNMADE.encode())
        assert rows(operator, STATE) != made
        for _ in range(5):
            results = at_once(
                [partial(prepare_store, postgres, "millrace")] * 3
                + [partial(owned_database, postgres, "crm", captured=True)] * 3
            )
            for result in results:
                result.result(0)
            assert rows(operator, STATE) == made


class Dies:
    """Ends the session of `prepare_store` after `statements` of its statements."""

    def __init__(self, observer: psycopg.Connection, statements: int) -> None:
        self.observer = observer
        self.left = statements
        self.execute = psycopg.Connection.execute

    def __get__(self, connection: psycopg.Connection, _: type) -> Callable[..., object]:
        if connection is not self.observer:
            if self.left == 0:
                pid = connection.info.backend_pid
                self.execute(self.observer, "select pg_terminate_backend(%s)", (pid,))
            self.left -= 1
        return partial(self.execute, connection)


def test_killed_at_any_statement_the_next_one_makes_it(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session ever sees a drain that may log in but is no member, or a database that is open to all."""
    postgres = endpoints.postgres
    assert postgres is not None
    with connect(endpoints.operator_dsn) as operator:
        made = rows(operator, STATE)
        operator.execute(UNMADE.encode())
        before = rows(operator, STATE)
        assert before != made
        deaths = 0
        while True:
            dies = Dies(operator, deaths)
            with monkeypatch.context() as patch, suppress(psycopg.OperationalError):
                patch.setattr(psycopg.Connection, "execute", dies)
                prepare_store(postgres, "millrace")
            if dies.left >= 0:
                break
            deaths += 1
            assert rows(operator, STATE) == before, deaths
        assert deaths > 5
        assert rows(operator, STATE) == made
