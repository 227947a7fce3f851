"""Slots: the columns of one wide table in which the rows of many read models fit, so that one plan builds them all.

A slot is a column of a kind and a type. Each model numbers its own columns, or keys, of a kind and type, and takes the
slots of these numbers. So a plan needs as many slots as the largest model, and does not grow with the models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.read_models.declared.columns import Column, KeyColumn, RankedColumn, is_text
from millrace.read_models.declared.conditions import Conditions
from millrace.read_models.declared.declaration import ReadModel


@dataclass(frozen=True)
class Slot:
    """A column of the wide table.

    Attributes:
        name: Its name there.
        column: The column that is built from the slot itself; a key is one of kind `key`.
        is_text: Whether it holds the text of a field of data, which the plan reads as the column's type.
        by: For a ranked column, the slot of the values that rank it.
        key: For a key, its declaration, which makes the key from the read value.
    """

    name: str
    column: Column
    is_text: bool
    by: "Slot | None" = None
    key: KeyColumn | None = None

    @property
    def reads(self) -> "tuple[Slot, ...]":
        """The columns of the wide table that it is built from."""
        return (self,) if self.by is None else (self, self.by)


@dataclass(frozen=True)
class Value:
    """A model's input of a slot: a source, None to count events, or one per decider; and the events that it takes."""

    source: str | None
    events: tuple[str, ...] | None
    by_decider: tuple[tuple[str, str], ...] = ()
    where: Conditions | None = None


@dataclass(frozen=True)
class Slots:
    """The slots of some models.

    Attributes:
        keys: The slots of key columns.
        values: The slots of other columns.
        of_keys: By view, the slot of each key column.
        of_columns: By view, the slot of each stored column.
    """

    keys: Sequence[Slot]
    values: Sequence[Slot]
    of_keys: Mapping[str, Mapping[str, Slot]]
    of_columns: Mapping[str, Mapping[str, Slot]]


def slots_of(models: Sequence[ReadModel]) -> Slots:
    """Give each column of each model a slot; models share slots, but the columns of one model have separate ones."""
    of_keys = {model.view: _numbered(model.read_keys) for model in models}
    of_columns = {model.view: _numbered(model.stored) for model in models}
    return Slots(_distinct(of_keys), _distinct(of_columns), of_keys, of_columns)


def values_of(model: ReadModel, slots: Slots) -> dict[str, Value]:
    """Return the values that a model puts into its slots, by slot."""
    return {
        name: Value(column.source, column.events, where=column.where)
        if isinstance(column, Column)
        else Value(column.column, None, column.by_decider)
        for name, column in columns_of(model, slots).items()
    }


def columns_of(model: ReadModel, slots: Slots) -> dict[str, Column | KeyColumn]:
    """Return the columns that a model reads of an event, in order, by slot."""
    read: dict[str, Column | KeyColumn] = {
        slot.name: model.read_keys[name] for name, slot in slots.of_keys[model.view].items()
    }
    for name, slot in slots.of_columns[model.view].items():
        read |= {of.name: one for of, one in zip(slot.reads, model.stored[name].reads, strict=True)}
    return read


def state_of(model: ReadModel, slots: Slots) -> list[str]:
    """Return the columns of the plan's result that are the model's log partition, key and state, in its order."""
    keys = [slots.of_keys[model.view][name].name for name in model.keys]
    columns = [slots.of_columns[model.view][name] for name in model.stored]
    return ["partition", *keys, *(state.name for slot in columns for state in slot.column.state(slot.name))]


def _numbered(columns: Mapping[str, Column | KeyColumn]) -> dict[str, Slot]:
    numbers: dict[str, int] = {}
    slots = {}
    for name, column in columns.items():
        kind = column.kind if isinstance(column, Column) else "key"
        of_text = is_text(column)
        # such as sum_decimal_18_2_text
        options = column.options if isinstance(column, Column) else ()
        parts = [kind, *options, *_type_parts(column.type), *(["text"] if of_text else [])]
        if isinstance(column, KeyColumn) and column.every:
            parts += [*column.every.split(" "), str(column.zone)]
        if isinstance(column, RankedColumn):
            parts += [*_type_parts(column.by.type), *(["text"] if is_text(column.by) else [])]
        prefix = "_".join(parts)
        number = numbers[prefix] = numbers.get(prefix, -1) + 1
        slot = f"{prefix}_{number}"
        by = None
        built = (
            replace(column, source=slot, events=None, where=None)
            if isinstance(column, Column)
            else Column(kind, slot, column.type)
        )
        if isinstance(column, RankedColumn):
            of_by = Column("by", f"by_{slot}", column.by.type)
            by = Slot(f"by_{slot}", of_by, is_text(column.by))
            built = replace(column, source=slot, events=None, where=None, by=of_by)
        slots[name] = Slot(slot, built, of_text, by, column if isinstance(column, KeyColumn) else None)
    return slots


def _type_parts(type_: str) -> list[str]:
    return type_.replace("(", " ").replace(",", " ").replace(")", "").split()


def _distinct(by_view: Mapping[str, Mapping[str, Slot]]) -> list[Slot]:
    """Return the slots of all views, one for each name."""
    return [*{slot.name: slot for slots in by_view.values() for slot in slots.values()}.values()]
