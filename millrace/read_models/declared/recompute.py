"""Read models that are a function of whole streams: (events: DataFrame) -> DataFrame, run anew for the touched streams.

    @recompute(view="lines", deciders=["order"], key=["order_id", "line"], columns={"line": "int", "amount": "bigint"})
    def order_lines(events: "DataFrame") -> "DataFrame":
        \"\"\"One row per line of an order.\"\"\"

A stream's rows are stored together, as arrays, with the position up to which they were computed; later rows replace
them. A batch costs as much as the whole histories of its streams: this is for streams that stay short, or for rows that
neither columns nor a fold can express.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from millrace.read_models.declared.column_types import SEALED
from millrace.read_models.declared.columns import StateColumn, in_envelopes
from millrace.read_models.declared.declaration import refuse
from millrace.read_models.declared.function_model import FunctionModel, declare, replaced, replaced_position
from millrace.spark.log_source import COLUMNS
from millrace.user_code import snake_case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, kw_only=True)
class Recompute(FunctionModel):
    """A read model with rows that a function of DataFrames computes from whole streams.

    Attributes:
        function: From the events of some streams, all of each, to their rows.
        row_key: The columns that distinguish the rows of one stream.
    """

    function: Function = field(repr=False)
    row_key: tuple[str, ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """The key of a stream's rows."""
        return (self.row_key,)

    @property
    def public_key(self) -> tuple[str, ...]:
        """The stream, and the key of its rows."""
        return (*self.keys, *self.row_key)

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The position, and an array per column: the rows of the stream, side by side."""
        return (
            replaced_position(),
            *(replaced(name, f"array<{type_}>") for name, type_ in self.stored_types.items()),
        )

    @property
    def public_values(self) -> dict[str, sql.Composable]:
        """The elements of the arrays."""
        return {
            name: in_envelopes(sql.SQL("r.{}").format(sql.Identifier(name)), self.public_columns()[name])
            for name in self.types
        }

    @property
    def expanded(self) -> sql.Composable:
        """One row per element."""
        names = sql.SQL(", ").join(map(sql.Identifier, self.types))
        return sql.SQL(", unnest({names}) r({names})").format(names=names)

    @property
    def sources(self) -> set[str]:
        """The function sees every column of the event."""
        return set(COLUMNS)


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
    serve: str = "built",
) -> Callable[[Function], Recompute]:
    """Declare a read model by a function of DataFrames: its name is the model's, its docstring says what a row is.

    The function gets the events of some streams, each from its first event on, in no order, with the columns of the
    source `event_log`. It returns `decider_id` (and `decider`, unless `deciders` names exactly one) and the declared
    columns in their exact types. The function depends on each stream by itself alone: not on the time, not on another
    table.

    Args:
        view: The name under which it consumes the event store.
        key: The name of the stream's `decider_id` in the model, then the columns that distinguish the rows of one
            stream.
        columns: The columns that are not the stream's, and their types; that of personal values is `sealed`, a
            string in Spark.
        deciders: The deciders that it takes events of; None for all.
        events: The events that it takes; None for all.
        version: Raise it when code that the function calls changes: the fingerprint sees only the function's own code.
        pooling_delay_s: How long to wait after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.
        serve: When a changed declaration serves: see `read_model`.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together.
    """

    def declared(function: Function) -> Recompute:
        listed = not isinstance(key, str) and len(key) > 0
        bad_key = [] if listed else ["key"]
        refuse(
            snake_case(function.__name__),
            [(bad_key, "is no list: begin with what the stream's decider_id is called")],
        )
        return declare(
            Recompute,
            function,
            key[0],
            columns,
            view=view,
            deciders=deciders,
            events=events,
            version=version,
            problems=[
                ([n for n in key[1:] if n not in columns], "is named in key= but not in columns="),
                ([n for n in key[1:] if columns.get(n) == SEALED], "is in key=, and a sealed value equals no other"),
            ],
            pooling_delay_s=pooling_delay_s,
            max_lag_s=max_lag_s,
            serve=serve,
            row_key=tuple(key[1:]),
        )

    return declared
