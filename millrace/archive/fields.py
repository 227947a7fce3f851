"""Fields of `data` that have a column of their own in a file of the archive, so that reading them parses no `data`.

The column has the text that Postgres' `data #>> array[<field>]` gives, for each event: null where the event has no such
field, and where it is a JSON null. The fields are chosen before the file is written: those that are a short scalar in
all events that are looked at. A file's footer names its fields with a column and those without.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

# the key in the footer of a file
METADATA = b"millrace.fields"
# without a dot: Arrow would take the text before a dot for a column, and read all columns that begin with it
PREFIX = "data:"
NO_NUMBERS: Mapping[str, int] = MappingProxyType({})
# the most fields of a file: those with a column, and all
MOST_COLUMNS = 64
MOST_FIELDS = 1000
# the most bytes of a field's name, in UTF-8, and of its value, as Postgres stores it
NAME_BYTES = 100
VALUE_BYTES = 1024


@dataclass(frozen=True)
class FoundField:
    """A field that occurs at the top of `data`; whether it is a short scalar in all events that were looked at."""

    name: str
    short: bool


@dataclass(frozen=True)
class Fields:
    """The fields of `data` in a file.

    Attributes:
        columns: Those with a column.
        others: Those without a column; None if they are not known.
    """

    columns: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None

    def hold(self, path: Sequence[str]) -> bool:
        """Return whether the value at a path is known without `data`: from a column, or because no event has one."""
        if len(path) != 1:
            return False
        (name,) = path
        if name in self.columns or self.others is None or name in self.others:
            return name in self.columns
        # the column of another field would be taken for this field's
        return folded(name) not in map(folded, self.columns)

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """The entry in the footer of a file."""
        stated = {"columns": self.columns, "others": self.others}
        return {METADATA: json.dumps(stated, ensure_ascii=False).encode()}


class RangeFields:
    """The fields of a range of events: the columns are chosen before it is read, the others are collected meanwhile.

    Args:
        chosen: The columns, and other fields that are known already; None for these if not all of them can be found.

    Attributes:
        columns: The fields with a column.
    """

    def __init__(self, chosen: Fields) -> None:
        self.columns = chosen.columns
        self._others = None if chosen.others is None else set(chosen.others)

    @property
    def known_fields(self) -> list[str] | None:
        """The fields that events no longer have to report; None if nothing is to be reported."""
        return None if self._others is None else sorted({*self.columns, *self._others})

    def add(self, reports: pa.StringArray) -> None:
        """Note the reports of events: a JSON array of fields that are not known, or a JSON null for an array.

        Any field may be an element of an array, by its number.
        """
        for report in reports.drop_null().unique().to_pylist():
            names = json.loads(report)
            if self._others is None or names is None:
                self._others = None
                return
            self._others.update(names)
            if len(self.columns) + len(self._others) > MOST_FIELDS:
                self._others = None

    @property
    def stated(self) -> Fields:
        """The fields to state in the footer of the range's file, once all events have reported."""
        return Fields(self.columns, None if self._others is None else tuple(sorted(self._others)))


def column_of(field: str) -> str:
    """Return the name of a field's column."""
    return PREFIX + field


def folded(name: str) -> str:
    """Return a text that is the same for names that some readers take for one."""
    return name.lower().casefold()


def chosen_fields(found: Iterable[FoundField], *, arrays: bool) -> Fields:
    """Choose the fields that get a column.

    Args:
        found: The most frequent fields of these events, the most frequent one first; MOST_FIELDS at most if these are
            all.
        arrays: Whether `data` is an array in some event: then a field may also be an element by its number.
    """
    found = list(found)
    # a reader may not tell upper from lower case
    alike = Counter(folded(each.name) for each in found)
    fit = [
        each.name
        for each in found
        if each.short and alike[folded(each.name)] == 1
        if each.name.isprintable() and 0 < len(each.name.encode()) <= NAME_BYTES
    ]
    columns = tuple(sorted(fit[:MOST_COLUMNS]))
    complete = len(found) <= MOST_FIELDS and not arrays
    return Fields(columns, tuple(sorted({each.name for each in found} - set(columns))) if complete else None)


def stated_fields(schema: pa.Schema) -> Fields:
    """Return the fields that a file states; none are known of a file without the columns that it names."""
    try:
        stated = json.loads((schema.metadata or {})[METADATA])
        columns, others = stated["columns"], stated["others"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return Fields()
    if not _is_names(columns) or not (others is None or _is_names(others)):
        return Fields()
    if any(schema.get_all_field_indices(column_of(name)) == [] for name in columns):
        return Fields()
    return Fields(tuple(columns), None if others is None else tuple(others))


def with_columns(schema: pa.Schema, fields: Iterable[str], numbers: Mapping[str, int] = NO_NUMBERS) -> pa.Schema:
    """Return the schema of a file that has the columns of some fields after the others, with their numbers."""
    ids = {name: {"PARQUET:field_id": str(number)} for name, number in numbers.items()}
    return pa.schema([*schema, *(pa.field(column_of(name), pa.string(), metadata=ids.get(name)) for name in fields)])


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
