"""Read models that are a Python function: the common part of a fold and a recomputed model."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, TypeVar

from psycopg import sql

from millrace.read_models.declared.column_types import ALLOWED_TYPES, SEALED, is_type, postgres_type
from millrace.read_models.declared.columns import KeyColumn, StateColumn
from millrace.read_models.declared.declaration import Problem, ReadModel, naming_problems, refuse
from millrace.user_code import is_async, is_generator, snake_case

# the state column of the position, in its log partition, up to which a row was computed
POSITION = "_position"

Model = TypeVar("Model", bound="FunctionModel")


@dataclass(frozen=True, kw_only=True)
class FunctionModel(ReadModel):
    """A read model with rows that a Python function computes, stream by stream.

    Attributes:
        function: The function.
        types: The columns that are not the stream's, and their types.
        code_version: The number that the user raises when code that the function uses changed.
    """

    function: Callable[..., Any] = field(repr=False)
    types: dict[str, str]
    code_version: int

    @property
    def shape(self) -> tuple[object, ...]:
        """The part of the declaration that only one kind has, for the fingerprint."""
        return ()

    @property
    def stored_types(self) -> dict[str, str]:
        """The Spark types of the columns that are not the stream's."""
        return {name: "string" if type_ == SEALED else type_ for name, type_ in self.types.items()}

    @property
    def fingerprint(self) -> str:
        """A hash of the declaration, the function's code without comments and formatting, and the moves of upcasts."""
        declared = (self.view, self.keys, self.types, *self.shape, self.deciders, self.events, self.code_version)
        return self.hashed((*declared, code_of(self.function)))

    @property
    def shaped_by(self) -> str:
        """All upcasts of its events, as `stream_state` writes them: the function reads all data."""
        upcasts = [one for one in self.of_taken_events(self.upcasts or ()) if one.parsed]
        return "".join(
            f"{one.decider} {one.event} {one.to_version} {one.digest}\n"
            for one in sorted(upcasts, key=lambda one: (one.decider, one.event, one.to_version))
        )

    def public_columns(self) -> dict[str, str]:
        """Return the columns of `read_models.<name>` with their Postgres types, the stream first."""
        types = dict.fromkeys(self.keys, "string") | self.types
        return {
            name: "jsonb" if type_ == SEALED else postgres_type(type_).removesuffix(' collate "C"')
            for name, type_ in types.items()
        }


def declare(
    kind: type[Model],
    function: Callable[..., Any],
    key: str,
    columns: Mapping[str, str],
    *,
    deciders: Sequence[str] | None,
    events: Sequence[str] | None,
    version: int,
    problems: Sequence[Problem] = (),
    **settings: Any,  # noqa: ANN401 - passed on to the kind
) -> Model:
    """Declare a read model of a kind by its function; `key` is the name of the stream's `decider_id`.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together, or one of `problems` applies.
    """
    name = snake_case(function.__name__)
    docstring = function.__doc__ or ""
    keys = stream_key(key, deciders)
    refuse(
        name,
        (
            *naming_problems(name, [*keys, *columns], deciders, events, docstring, settings["serve"]),
            *_column_problems(keys, columns),
            (
                [function.__name__] if is_async(function) or is_generator(function) else [],
                "is async or a generator: its code would not run",
            ),
            *problems,
        ),
    )
    return kind(
        name=name,
        description=" ".join(docstring.split()),
        keys=keys,
        columns={},
        deciders=tuple(sorted(set(deciders))) if deciders is not None else None,
        events=tuple(sorted(set(events))) if events is not None else None,
        function=function,
        types={column: type_.replace(" ", "") for column, type_ in columns.items()},
        code_version=version,
        **settings,
    )


def stream_key(key: str, deciders: Sequence[str] | None) -> dict[str, KeyColumn]:
    """Return the key of a model with one row, or one set of rows, per stream."""
    stream = {key: KeyColumn("decider_id")}
    return stream if deciders is not None and len(set(deciders)) == 1 else {"decider": KeyColumn("decider")} | stream


def _column_problems(keys: Mapping[str, KeyColumn], columns: Mapping[str, str]) -> Iterator[Problem]:
    yield [n for n in columns if n in keys], "is a column and in the key: rename one"
    yield [] if columns else ["columns"], "is empty: name at least one public column and its type"
    for name, type_ in columns.items():
        bad = not isinstance(type_, str) or not (type_ == SEALED or is_type(type_.replace(" ", "")))
        yield [name] if bad else [], f"has type {type_!r}; allowed: {ALLOWED_TYPES}, {SEALED}"


def code_of(function: Callable[..., object]) -> str:
    """Return a function's code without comments, docstring and decorators."""
    tree = ast.parse(dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return ast.unparse(definition)


def replaced_position() -> StateColumn:
    """Return the state column of the position, in its log partition, up to which a row was computed."""
    from pyspark.sql import functions as f

    merge = sql.SQL("max({})").format(sql.Identifier(POSITION))
    return StateColumn(POSITION, "bigint", lambda _, order: f.max(order), merge)


def replaced(name: str, spark_type: str, *, stored_as: str | None = None) -> StateColumn:
    """Return a state column that is computed anew as a whole: the merge keeps the value at the highest position."""
    from pyspark.sql import functions as f

    column, position = sql.Identifier(name), sql.Identifier(POSITION)
    if spark_type.startswith("array<"):
        # no aggregate takes arrays of several lengths; one takes rows
        merge = sql.SQL(
            "(select r.a from rows from (unnest(array_agg(row({}) order by {} desc)) as (a {}))"
            " with ordinality r(a, n) order by r.n limit 1)"
        ).format(column, position, sql.SQL(postgres_type(spark_type)))
    else:
        merge = sql.SQL("(array_agg({} order by {} desc))[1]").format(column, position)
    return StateColumn(name, spark_type, f.max_by, merge, stored_as)
