"""Rollups: groups of a read model's rows, with counts and sums that follow each change of a row.

    @rollup(of=Orders, key=["status"])
    class OrdersByStatus:
        \"\"\"Orders by status, as they are now.\"\"\"
        status = row("status")
        orders = count()

Rows change, so a column over rows must also be able to remove the part of an old row: a change adds +new -old.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from psycopg import sql

from millrace.errors import InvalidReadModel
from millrace.read_models.declared.buckets import beginning_in_sql
from millrace.read_models.declared.columns import Column, KeyColumn, StateColumn
from millrace.read_models.declared.declaration import Problem, ReadModel, key_problems, naming_problems, refuse
from millrace.user_code import snake_case

# how many rows a group has: an empty group is not shown
_ROWS = "_rows"
# in other types, equal values may look different: the order of changes would decide which of them is shown
_KEYS = ("text", "bigint", "int", "boolean", "date", "timestamptz")
_STATE, _DIGITS = "_state_", 8
_GROUPS = {"count", "sum", "avg"}


@dataclass(frozen=True, kw_only=True)
class Rollup(ReadModel):
    """Groups of a read model's rows.

    Attributes:
        of: The read model, maybe as one of its versions.
    """

    of: ReadModel = field(repr=False)
    is_rollup: ClassVar[bool] = True

    @property
    def adds_up(self) -> bool:
        """Whether each log partition has a part of each group."""
        return not self.of.crosses_streams

    @property
    def state_table(self) -> str:
        """The table of groups; its name has a hash of the columns and the query that it was made from."""
        # the state's name has the version, which has one declaration only
        rows = self.groups((sql.Identifier(self.of.state_table), 1))
        made_from = f"{[*self.public_columns()]} {rows.as_string()}"
        return f"{self.name}{_STATE}{hashlib.sha256(made_from.encode()).hexdigest()[:_DIGITS]}"

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The number of rows, and the sums; the merge is that of all log partitions' parts."""
        types = {name: "numeric" if column.kind == "sum" else "bigint" for name, column in self.columns.items()}
        return tuple(
            StateColumn(
                name,
                "",
                lambda value, _: value,  # Spark does not make it
                sql.SQL("sum({})::{}").format(sql.Identifier(name), sql.SQL(types.get(name, "numeric"))),
            )
            for name, _ in self._added
        )

    @property
    def visible(self) -> sql.Composable:
        """A condition: a group without a row does not exist."""
        return sql.SQL("{} > 0").format(sql.Identifier(_ROWS))

    def public_columns(self) -> dict[str, str]:
        """Return the columns of `read_models.<name>` with their Postgres types, key first."""
        types = self.of.public_columns()
        keys = {name: "timestamptz" if key.every else types[key.source] for name, key in self.keys.items()}
        return keys | {name: "bigint" if one.kind == "count" else "numeric" for name, one in self.columns.items()}

    def sources_of(self, name: str) -> tuple[str, ...]:
        """Return the read model's columns that a column is computed from; for the number of rows the key."""
        source = (self.keys | self.columns)[name].source
        return (source,) if source else self.of.public_key

    def groups(self, *sides: tuple[sql.Composable, int]) -> sql.Composed:
        """Return the query for the changes that some stored rows make to groups, as rows of the state.

        Args:
            sides: Items of a FROM with columns of the read model's state, and how often each row counts: -1 removes it.
        """
        members: list[Column | KeyColumn] = [*self.keys.values(), *self.columns.values()]
        needed = sorted({one.source for one in members if one.source})
        values = {name: sql.Identifier(name) for name in self.of.keys} | self.of.public_values
        rows = sql.SQL(" union all ").join(
            sql.SQL("select {} as _times{}{} from {}{} where {}").format(
                sql.Literal(times),
                sql.SQL(", partition" if self.adds_up else ""),
                sql.SQL("").join(sql.SQL(", {} as {}").format(values[name], sql.Identifier(name)) for name in needed),
                rows,
                self.of.expanded,
                self.of.visible,
            )
            for rows, times in sides
        )
        sums = {name: sql.SQL("sum(_times * {})").format(value) for name, value in self._added}
        keys = [
            sql.SQL("{} as {}").format(
                beginning_in_sql(sql.Identifier(key.source), key.every, key.zone)
                if key.every and key.zone
                else sql.Identifier(key.source),
                sql.Identifier(name),
            )
            for name, key in self.keys.items()
        ]
        partition = [sql.SQL("partition")] if self.adds_up else []
        return sql.SQL("select {keys}, {sums} from ({rows}) r group by {numbers} having {any}").format(
            keys=sql.SQL(", ").join([*partition, *keys]),
            sums=sql.SQL(", ").join(sql.SQL("{} as {}").format(value, sql.Identifier(n)) for n, value in sums.items()),
            rows=rows,
            numbers=sql.SQL(", ").join(sql.SQL(str(n + 1)) for n in range(len(partition) + len(keys))),
            # most changes of a row leave its group unchanged
            any=sql.SQL(" or ").join(sql.SQL("{} <> 0").format(value) for value in sums.values()),
        )

    @property
    def _added(self) -> list[tuple[str, sql.Composable]]:
        """The stored columns, and the value that a row adds to each."""
        added: list[tuple[str, sql.Composable]] = [(_ROWS, sql.SQL("1"))]
        for name, column in self.columns.items():
            source = sql.Identifier(column.source or "")
            if column.kind != "count":
                summed = name if column.kind == "sum" else f"{name}_sum"
                added.append((summed, sql.SQL("coalesce({}::numeric, 0)").format(source)))
            if column.kind != "sum":
                counted = name if column.kind == "count" else f"{name}_count"
                one = sql.SQL("num_nonnulls({})").format(source) if column.source else sql.SQL("1")
                added.append((counted, one))
        return added


def name_of(table: str) -> str:
    """Return the name of the rollup that a state table belongs to."""
    return table[: -len(_STATE) - _DIGITS]


def rollup(*, of: ReadModel | type, key: Sequence[str]) -> Callable[[type], Rollup]:
    """Declare groups of a read model's rows: the docstring is the description, the attributes are the columns.

    A change of a row changes its group, or its two groups, in the transaction that changes the row.

    Args:
        of: The read model, imported from its file.
        key: The names of the attributes that make up the key of a group, each a `row(…)` or a `bucket(…)`. The other
            attributes are `count()`, `count(…)`, `sum_(…)` or `avg(…)`.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together, or do not fit the read model.
    """

    def declare(declaration: type) -> Rollup:
        name = snake_case(declaration.__name__)
        members = {n: c for n, c in vars(declaration).items() if not n.startswith("__")}
        keys = {n: c for n, c in members.items() if isinstance(c, KeyColumn)}
        columns = {n: c for n, c in members.items() if isinstance(c, Column)}
        if not isinstance(of, ReadModel):
            raise InvalidReadModel(f"read model {name}: of is {of!r:.100}; name a read model, imported from its file")
        refuse(
            name,
            (
                (
                    [n for n in members if n not in {*keys, *columns}],
                    "is no column of a rollup: use row, bucket, count, …",
                ),
                (["key"] if isinstance(key, str) else [], "is a text: write a list"),
                *naming_problems(name, members, None, None, declaration.__doc__, "built"),
                *key_problems(name, key, keys, columns, "row(…) or bucket(…)"),
                ([of.name] if isinstance(of, Rollup) else [], "is a rollup: name the read model that it is of"),
                *rollup_problems(of, {**keys, **columns}),
            ),
        )
        declared = Rollup(
            name=name,
            view=of.view,
            description=" ".join((declaration.__doc__ or "").split()),
            keys={n: keys[n] for n in key},
            columns=columns,
            of=of,
        )
        stored = [*keys, *(one.name for one in declared.state_columns)]
        refuse(name, [([n for n in stored if stored.count(n) > 1], "is stored twice; rename one of the columns")])
        return declared

    return declare


def rollup_problems(of: ReadModel, members: Mapping[str, Column | KeyColumn]) -> Iterator[Problem]:
    """List the problems of the columns of a rollup with the columns of its read model."""
    types = of.public_columns()
    for name, one in members.items():
        if one.source is not None:
            yield (
                [name] if one.source not in types else [],
                f"is over {one.source!r}, which is no column of {of.name}; there are {', '.join(types)}",
            )
            yield (
                [name] if one.source in of.lookups else [],
                f"is over {one.source!r}, which {of.name} looks up: it changes without a commit of {of.name}; roll up a"
                " column of its own",
            )
        found = types.get(one.source or "", "bigint")
        over = f"is over {one.source!r}, {found}" + (" of sealed values" if found.startswith("jsonb") else "")
        if isinstance(one, KeyColumn):
            fits = found == "timestamptz" if one.every else found in _KEYS or found.startswith("numeric(")
            allowed = "a bucket is of a timestamp" if one.every else f"a key is {', '.join(_KEYS)} or decimal(p,s)"
            yield [name] if not fits else [], f"{over}; {allowed}"
            continue
        yield (
            [name] if one.kind not in _GROUPS else [],
            f"is {one.kind.removesuffix('_by')} of rows, from which no row can be taken back; use count, sum_ or avg",
        )
        yield [name] if one.events else [], "has events=, which rows have not: leave it out"
        yield [name] if one.where else [], "has where=, which is of events: leave it out, or make the value a key"
        if one.kind != "count":
            exact = found in {"bigint", "int"} or found.startswith("numeric")
            yield [name] if not exact else [], f"{over}; sums are of bigint, int or decimal(p,s), which add up exactly"
