"""The schema explains itself: everything has a comment, and names keep their rules."""

import re
from typing import LiteralString

import psycopg

from millrace.event_store.migrations import function_files
from millrace.event_store.refusals import BY_SQLSTATE
from tests.support.factories import Connect, rows, value

FUNCTIONS = function_files()

# objects in these schemas
OURS: LiteralString = "(select oid from pg_namespace where nspname ~ '^event_store')"
UNCOMMENTED: LiteralString = f"""
select 'schema', nspname from pg_namespace where oid in {OURS} and obj_description(oid, 'pg_namespace') is null
union all
select 'relation', c.relname from pg_class c
where c.relnamespace in {OURS} and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') and obj_description(c.oid, 'pg_class') is null
union all
select 'column', c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace in {OURS} and (c.relkind in ('r', 'p') or c.relname = 'change_events')
  and a.attnum > 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null
union all
select 'function', p.oid::regprocedure::text from pg_proc p
where p.pronamespace in {OURS} and obj_description(p.oid, 'pg_proc') is null
union all
select 'type', t.typname from pg_type t left join pg_class c on c.oid = t.typrelid
where t.typnamespace in {OURS} and t.typelem = 0 and (t.typtype in ('e', 'd', 'r') or c.relkind = 'c')
  and obj_description(t.oid, 'pg_type') is null
union all
select 'trigger', c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace in {OURS} and not t.tgisinternal and obj_description(t.oid, 'pg_trigger') is null
"""


def test_everything_has_a_comment(connect: Connect) -> None:
    assert rows(connect(), UNCOMMENTED) == []


def test_arguments_are_named_v_and_columns_of_results_are_not(connect: Connect) -> None:
    named: LiteralString = f"""
        select p.proname, a.name, coalesce(a.mode, 'i') from pg_proc p
        cross join lateral unnest(p.proargnames, p.proargmodes::text[]) a(name, mode)
        where p.pronamespace in {OURS}
    """
    arguments = rows(connect(), named)
    assert len(arguments) > 50
    assert [a for a in arguments if a[1].startswith("v_") is not (a[2] == "i")] == []
    unnamed = f"select proname from pg_proc where pronamespace in {OURS} and pronargs > 0 and proargnames is null"
    assert rows(connect(), unnamed) == []


def test_each_function_has_a_file_of_its_name_in_one_schema(connect: Connect) -> None:
    """Files in a folder named private, and only these, define functions in event_store_private."""
    name, in_files = "pronamespace::regnamespace::text || '.' || proname", set[str]()
    for path in FUNCTIONS:
        sql = path.read_text()
        made = set(re.findall(r"create (?:or replace )?function ([\w.]+)\(", sql))
        assert len(made) == 1, path
        in_files |= made
        schemas = ("_private",) if "private" in path.parts else ("", "_platform")
        assert made <= {f"event_store{schema}.{path.stem}" for schema in schemas}, path
        assert sql.startswith("-- "), path
        assert "\t" not in sql, path
        # elsewhere the directive would be a mere comment
        assert sql.count("planner:") == sql.count("\nas $$\n-- planner: "), path
    defined = rows(connect(), f"select {name} from pg_proc where pronamespace in {OURS}")
    assert {function for (function,) in defined} == in_files


def test_the_file_of_a_function_of_the_interface_says_who_may_call_it() -> None:
    for path in FUNCTIONS:
        if "private" not in path.parts:
            sql = path.read_text()
            made = re.findall(r"comment on function (event_store\w*\.\w+\([^)]*\)) is", sql)
            assert len(made) == sql.count("create or replace function"), path
            assert re.findall(r"revoke all on function (event_store\w*\.\w+\([^)]*\)) from public;", sql) == made, path
            granted = re.findall(r"grant execute on function (event_store\w*\.\w+\([^)]*\))\sto event_store_", sql)
            assert granted == made, path


def test_the_comment_of_a_function_names_each_refusal_once(connect: Connect) -> None:
    described: LiteralString = f"""
        select oid::regprocedure::text, obj_description(oid, 'pg_proc') from pg_proc
        where pronamespace <> 'event_store_private'::regnamespace and pronamespace in {OURS}
    """
    for signature, comment in rows(connect(), described):
        codes = re.findall(r"MR\d{3}", comment)
        assert len(codes) == len(set(codes)), signature
        assert set(codes) <= set(BY_SQLSTATE), signature
        assert comment.endswith("."), signature
        # the comment is the promise on a page of docs/
        assert len(comment) > 40 or "Does the same for a UUID" in comment, signature


def test_plpgsql_looks_names_up_in_the_store_only(connect: Connect) -> None:
    loose: LiteralString = f"""
        select p.proname from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace in {OURS} and l.lanname = 'plpgsql'
          and not 'search_path=event_store, pg_temp' = any (coalesce(p.proconfig, '{{}}'))
          and p.proname not in ('data_fault', 'is_unsealed', 'moved', 'moved_value', 'stream_partition') -- say why
    """
    assert rows(connect(), loose) == []


def test_no_plain_literal_has_a_backslash_which_may_be_an_escape() -> None:
    """A session, a login or a database may turn `standard_conforming_strings` off."""
    token = re.compile(r"--[^\n]*|\bE'(?:[^'\\]|\\.)*'|'[^']*'", re.DOTALL)
    assert [
        (path.name, literal)
        for path in FUNCTIONS
        if "set standard_conforming_strings = on" not in path.read_text()
        for literal in token.findall(path.read_text())
        if literal.startswith("'") and "\\" in literal
    ] == []


def test_invariants_are_named_constraints(connect: Connect) -> None:
    """A table's check constraints are named after the rule, not `table_column_check`."""
    unnamed: LiteralString = """
        select conname from pg_constraint
        where connamespace = 'event_store'::regnamespace and contype = 'c' and conname ~ '_check\\d*$'
    """
    assert rows(connect(), unnamed) == []


def test_the_api_is_found_without_a_search_path(connect: Connect) -> None:
    connection: psycopg.Connection = connect()
    connection.execute("set search_path = ''")
    rows(connection, "select * from event_store.get_events('x'::text, 'y')")
    rows(connection, "select event_store_platform.sequence_events()")
    rows(connection, "select * from event_store_platform.poll_views()")


def test_what_scans_by_index_only_or_lists_an_archive_compiles_nothing(connect: Connect) -> None:
    connection = connect()
    compiled: LiteralString = f"""
        select oid::regprocedure::text from pg_proc
        where pronamespace in {OURS} and not proconfig @> array['jit=off']
          and (proconfig @> array['enable_seqscan=off'] or proname = 'archive_state')
    """
    assert rows(connection, compiled) == []
    assert value(connection, "select count(*) > 30 from pg_proc where proconfig @> array['jit=off']")
