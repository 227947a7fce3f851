"""Indexes of a read model's rows: the columns of each, and the columns that can have none.

    @read_model(view="orders", deciders=["order"], key=["order_id"], indexes=[("status", "placed_at"), "kinds"])

The fingerprint excludes them: no version is built for another index. Not here: making them (`stored.indexes`).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millrace.read_models.declared.column_types import InvalidColumn

_USINGS = ("btree", "gin")
# the limit of Postgres
_MOST_COLUMNS = 32
# the digits behind a table's name in the name of an index
DIGITS = 8


@dataclass(frozen=True)
class Index:
    """An index of a read model.

    Attributes:
        columns: Its columns, in order.
        using: Its access method in Postgres.
    """

    columns: tuple[str, ...]
    using: str = "btree"

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{', '.join(self.columns)}{'' if self.using == 'btree' else f' using {self.using}'}"

    @property
    def digits(self) -> str:
        """Digits that distinguish it from other indexes of its table."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:DIGITS]


Declared = str | Sequence[str] | Index


def index(*columns: str, using: str = "btree") -> Index:
    """Declare an index of some columns; a btree may as well be written as a tuple of their names.

    Args:
        columns: The columns, in order.
        using: `btree` for equal values, ranges and orders; `gin` for the elements of a `set_union` or a `top`.
    """
    return Index(columns, using)


def as_indexes(declared: Sequence[Declared]) -> tuple[Index, ...]:
    """Return indexes from their declarations: a text is one column, a tuple several.

    Raises:
        InvalidColumn: A declaration is neither.
    """
    if not isinstance(declared, list | tuple):
        raise InvalidColumn(f"indexes={declared!r:.100} is no list of columns, tuples of columns and index(…)")
    indexes = []
    for entry in declared:
        columns = [entry] if isinstance(entry, str) else entry
        one = Index(tuple(columns)) if isinstance(columns, list | tuple) else columns
        if not isinstance(one, Index) or not one.columns or not all(isinstance(name, str) for name in one.columns):
            raise InvalidColumn(f"indexes=[{entry!r:.100}] is no column, no tuple of columns and no index(…)")
        indexes.append(one)
    return tuple(indexes)


def index_problems(
    indexes: Sequence[Index], types: Mapping[str, str], without: Mapping[str, str]
) -> Iterator[tuple[Sequence[str], str]]:
    """List the problems of indexes: each the bad name, and why it is bad.

    Args:
        indexes: The indexes.
        types: The columns of the model with their Postgres types.
        without: The columns that can have no index, and why.
    """
    for one in indexes:
        yield (
            [n for n in one.columns if n not in types],
            f"is in indexes= but is no column; there are {', '.join(types)}",
        )
        for name in one.columns:
            yield [name] if name in without else [], f"can have no index: {without.get(name)}"
        yield [one.using] if one.using not in _USINGS else [], f"is no using= of an index: use {' or '.join(_USINGS)}"
        of_elements = [n for n in one.columns if types[n].endswith("[]")]
        others = [n for n in one.columns if n not in of_elements]
        yield of_elements if one.using == "btree" else [], 'is in an index of whole values: use index(…, using="gin")'
        yield others if one.using == "gin" else [], 'has no elements: leave it out of an index with using="gin"'
        yield list(one.columns[_MOST_COLUMNS:]), f"is one column too many: an index has {_MOST_COLUMNS} at most"
    yield [str(one) for one, n in Counter(indexes).items() if n > 1], "is declared twice in indexes=: once is enough"
