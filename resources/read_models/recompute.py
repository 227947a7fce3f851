"""Read models that are a function of whole streams: (events: DataFrame) -> DataFrame, computed anew for the touched streams.

Belongs here: the declaration. Not here: Spark's plan (`function_rows`), the tables (`read_model_tables`).

    @recompute(view="lines", deciders=["order"], key=["order_id", "line"], columns={"line": "int", "amount": "decimal(18,2)"})
    def order_lines(events: "DataFrame") -> "DataFrame":
        \"\"\"One row per line of an order.\"\"\"

A stream's rows are stored together, as arrays, with the position up to which they were computed, and later ones replace
them: a row that the function returns no more is gone. The cost of a batch is that of the whole histories of its streams: for
streams that stay short, or for what neither columns nor a fold say.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.resources.event_log_source import COLUMNS
from millrace.resources.read_models.column_types import postgres_type
from millrace.resources.read_models.columns import StateColumn, replaced, replaced_position
from millrace.resources.read_models.declaration import ReadModel, naming_problems, refuse, snake_case
from millrace.resources.read_models.fold import POSITION, code_of, column_problems, stream_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, kw_only=True)
class Recompute(ReadModel):
    """A read model whose rows a function of DataFrames computes from whole streams.

    Attributes:
        function: From the events of some streams, all of each, to their rows.
        types: The columns besides the stream's, and their types.
        row_key: Those of them that tell the rows of one stream apart.
        code_version: What is raised when something that the function uses changed.
    """

    function: Function = field(repr=False)
    types: dict[str, str]
    row_key: tuple[str, ...]
    code_version: int

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The position, and an array per column: the rows of the stream, side by side."""
        return (
            replaced_position(POSITION),
            *(replaced(name, f"array<{type_}>", POSITION) for name, type_ in self.types.items()),
        )

    @property
    def public_values(self) -> dict[str, str]:
        """The elements of the arrays."""
        return {name: f"r.{{{name}}}" for name in self.types}

    @property
    def expanded(self) -> str:
        """One row per element."""
        names = ", ".join(f"{{{name}}}" for name in self.types)
        return f", unnest({names}) r({names})"

    @property
    def sources(self) -> set[str]:
        """The function sees every column of the event."""
        return set(COLUMNS)

    @property
    def fingerprint(self) -> str:
        """Changes with the declaration and with the function's code, not with its comments or its formatting."""
        rows = (self.view, self.keys, self.types, self.row_key, self.deciders, self.events, self.code_version)
        return hashlib.sha256(repr((*rows, code_of(self.function))).encode()).hexdigest()

    def public_columns(self) -> dict[str, str]:
        """The columns of `read_models.<name>` with their Postgres types, the stream first."""
        types = dict.fromkeys(self.keys, "string") | self.types
        return {name: postgres_type(type_).removesuffix(' collate "C"') for name, type_ in types.items()}


def recompute(
    *,
    view: str,
    key: Sequence[str],
    columns: Mapping[str, str],
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    version: int = 1,
    pooling_delay_s: int = 1,
    max_lag_s: int = 60,
) -> Callable[[Function], Recompute]:
    """Declare a read model by a function of DataFrames: its name is the model's, its docstring says what a row is.

    The function gets the events of some streams, each from its first event on, with the columns of the source `event_log`, in
    no order. It returns `decider_id`, unless there is exactly one decider also `decider`, and the declared columns in their
    exact types. It looks at each stream by itself, and at nothing else: not at the time, not at another table.

    Args:
        view: The name under which it consumes the event store.
        key: What the stream's `decider_id` is called in the model, then the columns that tell the rows of one stream apart.
        columns: The columns besides the stream's, and their types.
        deciders: The deciders whose events it takes; None for all.
        events: The events it takes; None for all.
        version: Raise it when the function changes what it does by something that it calls: only its own code is looked at.
        pooling_delay_s: How long to wait after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together.
    """

    def declare(function: Function) -> Recompute:
        name = snake_case(function.__name__)
        docstring = function.__doc__ or ""
        listed = not isinstance(key, str) and len(key) > 0
        keys = stream_key(key[0], deciders) if listed else {}
        refuse(
            name,
            (
                ([] if listed else ["key"], "is no list: begin with what the stream's decider_id is called"),
                *naming_problems(name, [*keys, *columns], deciders, events, docstring),
                *column_problems(keys, columns),
                ([n for n in key[1:] if n not in columns], "is named in key= but not in columns="),
            ),
        )
        return Recompute(
            name=name,
            view=view,
            description=" ".join(docstring.split()),
            keys=keys,
            columns={},
            deciders=tuple(sorted(set(deciders))) if deciders is not None else None,
            events=tuple(sorted(set(events))) if events is not None else None,
            pooling_delay_s=pooling_delay_s,
            max_lag_s=max_lag_s,
            function=function,
            types={column: type_.replace(" ", "") for column, type_ in columns.items()},
            row_key=tuple(key[1:]),
            code_version=version,
        )

    return declare
