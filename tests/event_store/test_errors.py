"""Every SQLSTATE of ours has its exception, with the database's own message."""

import re

import psycopg
import pytest

from millrace import errors
from millrace.errors import Conflict, Malformed, MillraceError
from millrace.event_store.migrations import function_files
from millrace.event_store.refusals import BY_SQLSTATE, refusals
from tests.support.factories import Connect
from tests.support.project import PROJECT

ROOMS = ("millrace/**/*.py", "resources/**/*.py", "assets/**/*.py", "platform_defs/**/*.py")
SOURCES = [path for room in ROOMS for path in PROJECT.glob(room)]


def raised(connection: psycopg.Connection, sqlstate: str) -> None:
    connection.execute(
        f"do $$ begin raise exception 'the message' using errcode = '{sqlstate}', detail = 'the detail', "
        "hint = 'the hint'; end $$".encode()
    )


def test_each_refusal_becomes_its_exception(connect: Connect) -> None:
    connection, became = connect(), {}
    for sqlstate in BY_SQLSTATE:
        with pytest.raises(MillraceError) as refused, refusals():
            raised(connection, sqlstate)
        error = refused.value
        became[sqlstate] = type(error)
        assert (error.message, error.detail, error.hint) == ("the message", "the detail", "the hint")
        assert str(error) == "the message\nthe detail\nthe hint"
        assert isinstance(error.__cause__, psycopg.Error)
    assert became == BY_SQLSTATE


def test_every_sqlstate_of_the_functions_is_known_and_none_else() -> None:
    used = {code for path in function_files() for code in re.findall(r"errcode = '(\w+)'", path.read_text())}
    # Postgres' own SQLSTATEs, for which clients retry the transaction
    assert used - {"serialization_failure", "lock_not_available"} == set(BY_SQLSTATE)


def test_the_tree_in_the_module_docstring_is_complete() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+) +(MR\d+)?", errors.__doc__ or ""))
    assert {name: code for name, code in drawn.items() if code} == {e.__name__: c for c, e in BY_SQLSTATE.items()}
    assert {e.__name__ for e in MillraceError.__subclasses__() if e.__module__ == errors.__name__} == set(drawn)


def test_the_module_docstring_names_the_exceptions_of_other_modules() -> None:
    (listed,) = re.findall(r"declared in that module.*?\n\n(.*?)(?:\n\n|\Z)", errors.__doc__ or "", re.DOTALL)
    elsewhere = [path for path in SOURCES if path.name != "errors.py"]
    declared = {
        name for path in elsewhere for name in re.findall(r"^class (\w+)\(MillraceError\)", path.read_text(), re.M)
    }
    assert declared == set(re.findall(r"\b[A-Z]\w+", listed))


def test_unreadable_values_are_malformed_and_other_errors_pass_unchanged(connect: Connect) -> None:
    connection = connect()
    for query, argument in (("select %s::uuid", "no uuid"), ("select %s::text", "a\0b"), ("select %s::jsonb", "{")):
        with pytest.raises(Malformed), refusals():
            connection.execute(query.encode(), (argument,))
    with pytest.raises(psycopg.errors.SyntaxError), refusals():
        connection.execute("selct")
    with pytest.raises(psycopg.errors.UniqueViolation), refusals():
        raised(connection, "23505")
    with pytest.raises(ZeroDivisionError), refusals():
        raise ZeroDivisionError


def test_a_text_leaves_out_what_is_not_there() -> None:
    assert str(Conflict("only this")) == "only this"
    assert str(Conflict("this", hint="and that")) == "this\nand that"
