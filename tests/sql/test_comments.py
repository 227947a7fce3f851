"""The schema explains itself: everything has a comment, and names keep their rules."""

import re
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from millrace.resources.event_store.migrations import function_files
from millrace.resources.event_store.refusals import BY_SQLSTATE
from tests.support.factories import Connect, rows

FUNCTIONS = function_files()

UNCOMMENTED: dict[str, LiteralString] = {
    "schema": """
        select nspname from pg_namespace where oid in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and obj_description(oid, 'pg_namespace') is null""",
    "relation": """
        select c.relname from pg_class c
        where c.relnamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
          and obj_description(c.oid, 'pg_class') is null""",
    "column": """
        select c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and c.relkind in ('r', 'p')
          and a.attnum > 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null""",
    "function": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and obj_description(p.oid, 'pg_proc') is null""",
    "type": """
        select t.typname from pg_type t left join pg_class c on c.oid = t.typrelid
        where t.typnamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and t.typelem = 0
          and (t.typtype in ('e', 'd', 'r') or c.relkind = 'c')
          and obj_description(t.oid, 'pg_type') is null""",
    "trigger": """
        select c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and not t.tgisinternal
          and obj_description(t.oid, 'pg_trigger') is null""",
}


@pytest.mark.parametrize("kind", UNCOMMENTED)
def test_everything_has_a_comment(connect: Connect, kind: str) -> None:
    assert rows(connect(), UNCOMMENTED[kind]) == []


def test_arguments_are_named_v_and_columns_of_results_are_not(connect: Connect) -> None:
    arguments = rows(
        connect(),
        """
        select p.proname, a.name, coalesce(a.mode, 'i') from pg_proc p
        cross join lateral unnest(p.proargnames, p.proargmodes::text[]) a(name, mode)
        where p.pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
        """,
    )
    assert len(arguments) > 50
    assert [a for a in arguments if a[1].startswith("v_") is not (a[2] == "i")] == []


def test_no_argument_is_without_a_name(connect: Connect) -> None:
    unnamed: LiteralString = """
        select proname from pg_proc
        where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
          and pronargs > 0 and proargnames is null
    """
    assert rows(connect(), unnamed) == []


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.stem)
def test_a_file_defines_the_function_of_its_name_in_the_schema_of_its_folder(path: Path) -> None:
    sql = path.read_text()
    schema = "event_store_private" if "private" in path.parts else "event_store"
    assert set(re.findall(r"create (?:or replace )?function ([\w.]+)\(", sql)) == {f"{schema}.{path.stem}"}
    assert sql.startswith("-- ")
    assert "\t" not in sql


@pytest.mark.parametrize("path", [p for p in FUNCTIONS if "private" not in p.parts], ids=lambda path: path.stem)
def test_the_file_of_a_function_of_the_interface_says_who_may_call_it(path: Path) -> None:
    sql = path.read_text()
    made = re.findall(r"comment on function (event_store\.\w+\([^)]*\)) is", sql)
    assert len(made) == sql.count("create or replace function")
    assert re.findall(r"revoke all on function (event_store\.\w+\([^)]*\)) from public;", sql) == made
    assert re.findall(r"grant execute on function (event_store\.\w+\([^)]*\))\sto event_store_", sql) == made


def test_the_comment_of_a_function_of_the_interface_names_each_refusal_once(connect: Connect) -> None:
    described = rows(
        connect(),
        """
        select oid::regprocedure::text, obj_description(oid, 'pg_proc') from pg_proc
        where pronamespace = 'event_store'::regnamespace
        """,
    )
    for signature, comment in described:
        codes = re.findall(r"MR\d{3}", comment)
        assert len(codes) == len(set(codes)), signature
        assert set(codes) <= set(BY_SQLSTATE), signature
        assert comment.endswith("."), signature
        # a page is made of these
        assert len(comment) > 40 or "Does the same for a UUID" in comment, signature


def test_every_function_has_its_file(connect: Connect) -> None:
    defined = rows(
        connect(),
        """
        select distinct pronamespace::regnamespace::text, proname from pg_proc
        where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
        """,
    )
    filed = [("event_store_private" if "private" in path.parts else "event_store", path.stem) for path in FUNCTIONS]
    assert sorted(defined) == sorted(filed)


def test_plpgsql_looks_names_up_in_the_store_only(connect: Connect) -> None:
    loose = rows(
        connect(),
        """
        select p.proname from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and l.lanname = 'plpgsql'
          and not 'search_path=event_store, pg_temp' = any (coalesce(p.proconfig, '{}'))
          and p.proname <> 'data_fault' -- says why
        """,
    )
    assert loose == []


def test_invariants_are_named_constraints(connect: Connect) -> None:
    """A table's check constraints say what holds, not `table_column_check`."""
    unnamed = rows(
        connect(),
        """
        select conname from pg_constraint
        where connamespace = 'event_store'::regnamespace and contype = 'c' and conname ~ '_check\\d*$'
        """,
    )
    assert unnamed == []


def test_the_api_is_found_without_a_search_path(connect: Connect) -> None:
    connection: psycopg.Connection = connect()
    connection.execute("set search_path = ''")
    rows(connection, "select * from event_store.get_events('x'::text, 'y')")
    rows(connection, "select event_store.sequence_events()")
    rows(connection, "select * from event_store.poll_views()")
