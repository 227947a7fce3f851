"""The effect of a changed declaration on the rows that serve: both sides at one place of the log, and the differences.

The serving rows are copied with their checkpoints, as of one moment: their code may be gone, and drains change them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from millrace.errors import MillraceError
from millrace.event_store import LogMark
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.past import all_as_of, at_mark
from millrace.read_models.stored.store import ReadModelStore, Version
from millrace.read_models.stored.tables import SCHEMA, as_owners, drop, drop_tables, drop_view, listed, relation
from millrace.read_models.stored.versions import reset_model, versions, with_upcasts

# a copy that is not compared by then belongs to a process that died, unless its leases live
UNFINISHED = timedelta(hours=1)


class NothingToCompare(MillraceError):
    """No version of the model serves, or none as of the moment that was named."""


@dataclass(frozen=True)
class Found:
    """How the rows of two declarations differ.

    Attributes:
        rows_before: How many rows the serving version has.
        rows_after: How many rows the other declaration has.
        same_key: Whether the key's columns identify the rows of both sides. If not, no rows are compared.
        gone: How many keys only the serving version has.
        new: How many keys only the other declaration has.
        changed: How many rows with one key differ in some column.
        columns: In how many rows each column differs, without the columns that differ in none.
        added: The columns that only the other declaration has.
        removed: The columns that only the serving version has.
        retyped: The columns that have another type; they are not compared.
        uncompared: The columns that show another read model's row now, whether they did before or not.
        failed_streams: How many streams fail in the other declaration; their rows end before the failure.
    """

    rows_before: int
    rows_after: int
    same_key: bool
    gone: int = 0
    new: int = 0
    changed: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    retyped: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)
    failed_streams: int = 0

    @property
    def differs(self) -> bool:
        """Whether anything differs."""
        return not self.same_key or any((self.gone, self.new, self.changed, self.added, self.removed, self.retyped))

    def __str__(self) -> str:
        """Return it as a few sentences."""
        if not self.same_key:
            sentences = [
                f"The key is another one: {self.rows_before:,} rows before, {self.rows_after:,} after, not compared."
            ]
        elif not (self.gone or self.new or self.changed):
            sentences = [f"None of {self.rows_before:,} rows changes."]
        else:
            counted = ", ".join(f"`{name}` ({number:,})" for name, number in self.columns.items())
            where = f": {counted}" if counted else ""
            if len(self.columns) == 1:
                where = f", all in `{next(iter(self.columns))}`"
            sentences = [f"{self.changed:,} of {self.rows_before:,} rows change{where}."]
        for number, word in ((self.gone, "go"), (self.new, "are new")):
            sentences += [f"{number:,} rows {word}."] if number else []
        for names, word in (
            (self.added, "added"),
            (self.removed, "removed"),
            (self.retyped, "of another type, and not compared"),
            (self.uncompared, "looked up, and not compared"),
        ):
            sentences += [f"Columns {word}: {', '.join(f'`{name}`' for name in names)}."] if names else []
        if self.failed_streams:
            sentences.append(f"{self.failed_streams:,} streams fail, and have what was before.")
        return " ".join(sentences)


@dataclass(frozen=True)
class Diff:
    """A comparison of a declaration with the serving version.

    Attributes:
        number: Rises with time.
        name: Its table of rows that differ, in the schema `read_models`.
        model: The read model.
        version: The version that served.
        mark_id: The moment of the log; None for where the serving version stood.
        partition: The log partition that is the sample; None for all.
        fingerprint: The declaration's fingerprint.
        marks: The position up to which both sides have the events, for each log partition.
        taken_at: The time of that place of the log.
        waiting_streams: How many streams failed in the serving version; their rows end before the failure.
        expires_at: The time from which on it may be removed.
        compared_at: When it was compared; None before.
        found: The differences; None before it is compared.
    """

    number: int
    name: str
    model: str
    version: int
    mark_id: int | None
    partition: int | None
    fingerprint: str
    marks: list[int]
    taken_at: datetime
    waiting_streams: int
    expires_at: datetime
    compared_at: datetime | None
    found: dict[str, Any] | None

    @property
    def outcome(self) -> Found | None:
        """The differences; None before it is compared."""
        return Found(**self.found) if self.found is not None else None


def diffs(connection: psycopg.Connection, model: str) -> list[Diff]:
    """Return the diffs of a model, the oldest first."""
    with connection.cursor(row_factory=class_row(Diff)) as cursor:
        return cursor.execute("select * from read_models.diffs where model = %s order by number", (model,)).fetchall()


def last_diff(connection: psycopg.Connection, model: ReadModel) -> Diff | None:
    """Return the last complete diff of a declaration: of all log partitions, and with the version that serves now."""
    with connection.cursor(row_factory=class_row(Diff)) as cursor:
        return cursor.execute(
            """
            select d.*
            from read_models.diffs d
            join read_models.declarations v using (model, version)
            where d.model = %s and d.fingerprint = %s and d.partition is null and d.mark_id is null
              and d.compared_at is not null and v.serves and d.taken_at >= v.declared_at
            order by d.number desc
            limit 1
            """,
            (model.name, with_upcasts(connection, model).fingerprint),
        ).fetchone()


def take(connection: psycopg.Connection, model: ReadModel, mark: LogMark | None, partition: int | None = None) -> Diff:
    """Copy the serving rows with their place in the log; continue with a copy that was not compared yet.

    Args:
        connection: A session that is in no transaction.
        model: The declaration, with upcasts.
        mark: A moment as of which the serving version was built; None for where it stands.
        partition: The log partition to which the copy is limited; None for all.

    Raises:
        NothingToCompare: No version serves, or not as of the moment.
    """
    while True:
        serving = _serving(connection, model.name)
        if serving is None:
            raise NothingToCompare(
                f"No version of read model {model.name} serves: there is nothing to compare with.",
                hint=f"Build it: millrace run drain {model.name} --once",
            )
        if serving.unbuilt:
            raise NothingToCompare(
                f"Read model {model.name} is being built from the archive: there is nothing to compare with yet.",
                hint=f"Let its drain end: millrace run drain {model.name} --once",
            )
        failed = None
        if mark is not None:
            as_of = next((one for one in all_as_of(connection, model.name) if one.mark_id == mark.mark_id), None)
            if as_of is None or as_of.built_at is None or as_of.fingerprint != serving.fingerprint:
                raise NothingToCompare(
                    f"Read model {model.name} is not built as of moment {mark.mark_id} by the declaration that serves.",
                    hint=f"With the code that serves: millrace show as-of {model.name} --mark {mark.mark_id}",
                )
            failed = as_of.failed_streams
        else:
            # let the view pass over pending events that it does not want
            PlatformStore(connection).pass_over_unwanted(serving.view)
        with connection.transaction():
            # all of it is as of one moment, after this lock: meanwhile the view continues to show its version
            connection.execute("set transaction isolation level repeatable read")
            served = model.at_version(serving.version, serving.view) if mark is None else at_mark(model, mark)
            connection.execute(sql.SQL("lock table {} in access share mode").format(relation(served.name)))
            if _serving(connection, model.name) == serving:
                return _copied(connection, model, served, serving, mark, failed, partition)


def _serving(connection: psycopg.Connection, model: str) -> Version | None:
    return next((version for version in versions(connection, model) if version.serves), None)


def _copied(
    connection: psycopg.Connection,
    model: ReadModel,
    served: ReadModel,
    serving: Version,
    mark: LogMark | None,
    failed: int | None,
    partition: int | None,
) -> Diff:
    """Return a copy of the serving rows that was not compared yet; make one if there is none."""
    stands = "select array_agg(position order by partition) from event_store.checkpoints where view = %s"
    marks = mark.marks if mark else _value(connection, stands, (serving.view,))
    place = {
        "model": model.name,
        "version": serving.version,
        "mark_id": mark and mark.mark_id,
        "partition": partition,
        "fingerprint": model.fingerprint,
        "marks": marks,
        "marked_at": mark and mark.marked_at,
        "failed": failed,
        "view": serving.view,
        "unfinished": UNFINISHED,
    }
    with connection.cursor(row_factory=class_row(Diff)) as cursor:
        unfinished = cursor.execute(
            """
            select * from read_models.diffs
            where model = %(model)s and version = %(version)s and fingerprint = %(fingerprint)s
              and mark_id is not distinct from %(mark_id)s and partition is not distinct from %(partition)s::int
              and compared_at is null and (mark_id is not null or taken_at >= (
                select declared_at from read_models.declarations where model = %(model)s and version = %(version)s
              ))
            order by number desc
            limit 1
            """,
            place,
        ).fetchone()
        if unfinished is not None:
            return unfinished
        diff = cursor.execute(
            """
            insert into read_models.diffs
              (model, version, mark_id, partition, fingerprint, marks, taken_at, waiting_streams, expires_at)
            select
              %(model)s, %(version)s, %(mark_id)s, %(partition)s, %(fingerprint)s, %(marks)s,
              coalesce(%(marked_at)s, clock_timestamp()),
              coalesce(%(failed)s, (
                select count(*) from event_store.stream_locks
                where view = %(view)s and partition = coalesce(%(partition)s, partition)
              )),
              clock_timestamp() + %(unfinished)s
            returning *
            """,
            place,
        ).fetchone()
    assert diff is not None
    rows = sql.SQL("table {}").format(relation(served.name))
    if diff.partition is not None:
        rows = _of_partition(connection, served, diff.partition)
    with as_owners(connection):
        connection.execute(sql.SQL("create table {} as {}").format(relation(f"{diff.name}_before"), rows))
    return diff


def _of_partition(connection: psycopg.Connection, served: ReadModel, partition: int) -> sql.Composed:
    """Return the query of a public view over one log partition: Postgres has the view, its declaration may be gone."""
    connection.execute("set local search_path = pg_catalog")  # so that all names have their schema
    query = str(_value(connection, "select pg_get_viewdef(%s::regclass)", (f"{SCHEMA}.{served.name}",)))
    whole = served.state_table
    # the rows of a key that crosses streams are merged from parts, which have the log partition
    has_parts = _value(connection, "select to_regclass(%s) is not null", (f"{SCHEMA}.{served.parts_table}",))
    rows = served.parts_table if has_parts else whole
    one = sql.SQL("(select * from {} where partition = {}) {}").format(
        relation(rows), sql.Literal(partition), sql.Identifier(whole)
    )
    of_one = re.sub(rf"\b{SCHEMA}\.{whole}\b", lambda _: one.as_string(), query.rstrip(";"))
    return sql.Composed([sql.SQL(of_one)])


def comparable_partitions(connection: psycopg.Connection, view: str, declared: str) -> list[int]:
    """Return the log partitions with rows of all events below their checkpoints, if there are such events.

    A log partition is left out if a stream of it waits for a retry or was given up, or if an event was discarded: a
    rebuild retries that event. If the event cannot be retried, a rebuild leaves out those discarded for any version of
    the model, declared with the view `declared`; but the version that is consumed as `view` may have them.
    """
    return _value(  # type: ignore[no-any-return]
        connection,
        """
        select array(
          select c.partition from event_store.checkpoints c where c.view = %(view)s and c.position > 0
          except
          select unnest(d.unbuilt) from read_models.declarations d where d.view = %(view)s
          except
          select k.partition from event_store.stream_locks k where k.view = %(view)s
          except
          select event_store.stream_partition(a.detail ->> 'decider_id', (select count(*) from event_store.log_partitions))
          from event_store.audit_log a
          where a.operation = 'discard_dead_letter' and (
            a.view = %(view)s
            or (a.detail ->> 'offset')::bigint in (select event_store_platform.purged_discards(%(declared)s))
          )
          order by 1
        )
        """,
        {"view": view, "declared": declared},
    )


def compare(
    connection: psycopg.Connection,
    diff: Diff,
    built: ReadModel,
    lookups: Sequence[str],
    failed_streams: int,
    keep: timedelta,
) -> None:
    """Compare the copy with the version that was built, once; keep the rows that differ, and nothing else.

    Columns that show another model's row are not compared: they change with that row.

    Raises:
        ViewInUse: Another process builds the same version at this moment.
    """
    with connection.transaction():
        models = ReadModelStore(connection)
        models.lock_model(diff.name)
        state = "select min((compared_at is not null)::int) from read_models.diffs where name = %s"
        is_compared = _value(connection, state, (diff.name,))
        if is_compared is None:
            reset_model(connection, built)  # removed while this was built
        elif not is_compared:
            # first, because another process may hold its leases
            models.drop_version(built.name, built.version)
            PlatformStore(connection).unregister_view(built.view, f"diff {diff.name} is built")
            with as_owners(connection):
                found = _compared(connection, diff, built, lookups, failed_streams)
            drop_view(connection, built)
            drop_tables(connection, built)
            drop(connection, built, sql.SQL("drop table {}").format(relation(f"{diff.name}_before")))
            rows, name = relation(f"{diff.name}_rows"), sql.Identifier(diff.name)
            connection.execute(sql.SQL("alter table {} rename to {}").format(rows, name))
            connection.execute(
                """
                update read_models.diffs
                set compared_at = clock_timestamp(), found = %s, expires_at = clock_timestamp() + %s
                where name = %s
                """,
                (Jsonb(asdict(found)), keep, diff.name),
            )


def _compared(
    connection: psycopg.Connection, diff: Diff, built: ReadModel, lookups: Sequence[str], failed_streams: int
) -> Found:
    """Make the table of differing rows, and count them."""
    before, after, rows = (relation(name) for name in (f"{diff.name}_before", built.name, f"{diff.name}_rows"))
    old, new = _types(connection, before), _types(connection, after)
    keys = [*built.public_key]
    both = [name for name in new if name in old and name not in keys]
    compared = [name for name in both if old[name] == new[name]]
    twice = sql.SQL("select exists (select from {} group by {} having count(*) > 1)").format(before, listed(keys))
    found = Found(
        rows_before=_value(connection, sql.SQL("select count(*) from {}").format(before)),
        rows_after=_value(connection, sql.SQL("select count(*) from {}").format(after)),
        same_key=all(old.get(key) == new[key] for key in keys) and not _value(connection, twice),
        added=[name for name in [*new, *lookups] if name not in old],
        removed=[name for name in old if name not in new and name not in lookups],
        retyped=[name for name in both if name not in compared],
        uncompared=[name for name in lookups if name in old],
        failed_streams=failed_streams,
    )
    one_side = sql.SQL("(select true as _there, row({keys}) as _key, t.* from {} t)").format
    connection.execute(
        sql.SQL(
            """
            create table {rows} as
            select
              {keys},
              case when b._there is null then 'new' when a._there is null then 'gone' else 'changed' end as _change,
              case when b._there and a._there then array_remove(array[{differing}]::text[], null) end as _columns,
              case when b._there then to_jsonb(b) - '_there' - '_key' end as _before,
              case when a._there then to_jsonb(a) - '_there' - '_key' end as _after
            from {before} b
            full join {after} a on b._key = a._key
            where {whether} and (b._there is null or a._there is null or {differ})
            """
        ).format(
            rows=rows,
            keys=sql.SQL(", ").join(
                sql.SQL("case when a._there then a.{0} else {1} end as {0}").format(
                    sql.Identifier(key), sql.Identifier("b", key) if found.same_key else sql.SQL("null")
                )
                for key in keys
            ),
            differing=sql.SQL(", ").join(
                sql.SQL("case when {} then {} end").format(_differs(name), sql.Literal(name)) for name in compared
            ),
            before=one_side(before, keys=listed(keys) if found.same_key else sql.SQL("null")),
            after=one_side(after, keys=listed(keys)),
            whether=sql.Literal(found.same_key),
            differ=sql.SQL(" or ").join([*map(_differs, compared), sql.SQL("false")]),
        )
    )
    connection.execute(sql.SQL("grant select on {} to event_store_reader").format(rows))
    connection.execute(
        sql.SQL("comment on table {} is 'The rows that a changed declaration changes, and how.'").format(rows)
    )
    changes = _pairs(connection, sql.SQL("select _change, count(*) from {} group by 1").format(rows))
    counted = sql.SQL("select c, count(*) from {} cross join unnest(_columns) c group by 1 order by 2 desc, 1")
    return replace(found, **changes, columns=_pairs(connection, counted.format(rows)))  # type: ignore[arg-type]


def _differs(column: str) -> sql.Composed:
    return sql.SQL("{} is distinct from {}").format(sql.Identifier("b", column), sql.Identifier("a", column))


def _types(connection: psycopg.Connection, rows: sql.Identifier) -> dict[str, int]:
    """Return the columns of a table or view, each with the number of its type."""
    described = connection.execute(sql.SQL("select * from {} limit 0").format(rows)).description or ()
    return {column.name: column.type_code for column in described}


def _pairs(connection: psycopg.Connection, statement: sql.Composed) -> dict[str, int]:
    return {str(name): int(number) for name, number in connection.execute(statement)}


def _value(
    connection: psycopg.Connection, statement: str | sql.Composed, values: Sequence[object] | Mapping[str, object] = ()
) -> Any:  # noqa: ANN401
    row = connection.execute(
        statement if isinstance(statement, sql.Composed) else statement.encode(), values
    ).fetchone()
    assert row is not None
    return row[0]


@dataclass(frozen=True)
class Example:
    """A differing row: how, its key, and both sides as JSON texts; a changed row only with the columns that differ."""

    change: str
    key: str
    before: str | None
    after: str | None


def examples(connection: psycopg.Connection, diff: Diff) -> list[Example]:
    """Return some differing rows, at most twenty of each kind."""
    with connection.cursor(row_factory=class_row(Example)) as cursor:
        return cursor.execute(
            sql.SQL(
                """
                select
                  d._change as change,
                  (to_jsonb(d) - array['_change', '_columns', '_before', '_after'])::text as key,
                  (d._before - array(select jsonb_object_keys(d._before) except select unnest(d._columns)))::text as before,
                  (d._after - array(select jsonb_object_keys(d._after) except select unnest(d._columns)))::text as after
                from (values ('changed'), ('gone'), ('new')) kinds(kind)
                cross join lateral (
                  select _change, coalesce(_columns, array(select jsonb_object_keys(coalesce(_before, _after)))) as _columns,
                    _before, _after, {keys}
                  from {rows} where _change = kind limit 20
                ) d
                """
            ).format(
                keys=listed([n for n in _types(connection, relation(diff.name)) if not n.startswith("_")]),
                rows=relation(diff.name),
            )
        ).fetchall()
