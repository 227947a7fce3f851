"""Read models that are a fold in Python: a function (state, event) -> state, run over each stream in order.

    @fold(view="carts", deciders=["cart"], key="cart_id", columns={"items": "int"})
    def carts(state: State | None, event: FoldEvent) -> State | None:
        \"\"\"One row per cart.\"\"\"

A stream has one row: its state as JSON, and the position up to which it was folded. A drain continues from the stored
state, a rebuild from None. Events up to a state's position are in it already: reading them again changes nothing.

Prefer columns (`read_model`) if they can express the model: they are several times faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from millrace.read_models.declared.columns import StateColumn, in_envelopes
from millrace.read_models.declared.declaration import with_indexes
from millrace.read_models.declared.fold_event import Function
from millrace.read_models.declared.function_model import FunctionModel, declare, replaced, replaced_position
from millrace.read_models.declared.indexes import Declared

STATE = "_state"
# the columns that identify a stream in a task's batches
STREAM = ("partition", "decider", "decider_id")
READ = (*STREAM, "position", "event", "event_version", "data", "created_at", "offset")


@dataclass(frozen=True, kw_only=True)
class Fold(FunctionModel):
    """A read model with one row per stream, which a Python function computes.

    Attributes:
        function: From the state before (None at first) and an event to the state after; None for no row.
        types: The public columns: keys of the state and their types.
    """

    function: Function = field(repr=False)

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The position, the state and the public columns; the merge keeps those of the latest state."""
        return (
            replaced_position(),
            # json, not jsonb: a state that is read again is identical, with its keys in order
            replaced(STATE, "string", stored_as="json"),
            *(replaced(name, type_) for name, type_ in self.stored_types.items()),
        )

    @property
    def public_values(self) -> dict[str, sql.Composable]:
        """The public columns."""
        return {name: in_envelopes(sql.Identifier(name), self.public_columns()[name]) for name in self.types}

    @property
    def visible(self) -> sql.Composable:
        """A condition: a stream without a state has no row."""
        return sql.SQL("{} is not null").format(sql.Identifier(STATE))

    @property
    def sources(self) -> set[str]:
        """The columns of a `FoldEvent`, and those that order the events."""
        return set(READ)


def fold(
    *,
    view: str,
    key: str,
    columns: Mapping[str, str],
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    version: int = 1,
    pooling_delay_s: int = 1,
    max_lag_s: int = 60,
    serve: str = "built",
    indexes: Sequence[Declared] = (),
) -> Callable[[Function], Fold]:
    """Declare a read model by a function: its name is the model's, its docstring says what a row is.

    The function gets the state before, None at a stream's first event, and an event. It returns the state after: a dict
    that JSON holds unchanged, with texts as keys, without tuples. The function must depend on these two arguments
    alone: not on the time, not on a database. None removes the row, until a later event returns a state again.

    Args:
        view: The name under which it consumes the event store.
        key: The name of the stream's `decider_id`. Unless `deciders` names exactly one, the key is `decider` and
            this.
        columns: The public columns: keys of the state to types; a key that is missing or None is null. A personal
            value is `sealed`.
        deciders: The deciders that it takes events of; None for all.
        events: The events that it takes; None for all.
        version: Raise it when code that the function calls changes: the fingerprint sees only the function's own code.
        pooling_delay_s: How long to wait after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.
        serve: When a changed declaration serves: see `read_model`.
        indexes: The indexes of its rows: see `read_model`.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together.
    """

    def declared(function: Function) -> Fold:
        model = declare(
            Fold,
            function,
            key,
            columns,
            view=view,
            deciders=deciders,
            events=events,
            version=version,
            pooling_delay_s=pooling_delay_s,
            max_lag_s=max_lag_s,
            serve=serve,
        )
        return with_indexes(model, indexes)

    return declared
