"""The publication of a capture on its source: exactly the declared tables, columns, rows and actions."""

import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, ReadOnlySqlTransaction

from millrace.capture.declaration import Capture, CapturedTable, table_name
from millrace.capture.source.published import published_tables
from millrace.errors import MillraceError

_MARK = "Millrace keeps this as declared"
_REMARK = re.compile(rf"{_MARK}: \w*, (?P<state>\w+), (?P<entries>\w+), (?P<row>\d+ \d+), (?P<owner>\d+)\.")
_PROBED = " Probed: "
# errors that may keep a table in the publication; the capture meets them again, and reports them
_UNABLE = (LockNotAvailable, InsufficientPrivilege, ReadOnlySqlTransaction)

# The state of a publication without its name and owner. A table is its name and its id: another table may have taken
# the name since.
_STATE = """
select
  obj_description(p.oid, 'pg_publication'),
  concat_ws(' ', p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, to_jsonb(p) ->> 'pubgencols'),
  (select string_agg(s.pnnspid::text, ' ' order by s.pnnspid) from pg_publication_namespace s where s.pnpubid = p.oid),
  (
    select jsonb_object_agg(
      json_build_array(n.nspname, c.relname)::text,
      -- The filter as the server parsed it, without its place in the statement. Writing it as SQL would wait for the table's locks.
      format('%%s %%s %%s', r.prrelid, r.prattrs, regexp_replace(r.prqual::text, ' :location -?\\d+', '', 'g'))
    )
    from pg_publication_rel r
    join pg_class c on c.oid = r.prrelid
    join pg_namespace n on n.oid = c.relnamespace
    where r.prpubid = p.oid
  ),
  -- what changes with each change of these rows, also with one that is taken back
  format('%%s %%s', p.oid, p.xmin),
  p.pubowner::text,
  (
    select jsonb_object_agg(json_build_array(n.nspname, c.relname)::text, format('%%s %%s', r.oid, r.xmin))
    from pg_publication_rel r
    join pg_class c on c.oid = r.prrelid
    join pg_namespace n on n.oid = c.relnamespace
    where r.prpubid = p.oid
  )
from pg_publication p
where p.pubname = %s
"""


@dataclass(frozen=True)
class _State:
    """The state of a publication: its comment, its switches, its schemas, and by table what it publishes of that table.

    `row`, `owner` and `entries` are the versions of its rows in the catalogue, by table for `entries`.
    """

    remark: str | None
    switches: str
    schemas: str | None
    tables: dict[tuple[str, str], str] | None
    row: str
    owner: str
    entries: dict[tuple[str, str], str] | None

    def __str__(self) -> str:
        return repr((self.switches, self.schemas, sorted((self.tables or {}).items())))


class ForeignPublication(MillraceError):
    """A publication of that name exists, and Millrace did not make it."""


def ensure_publication(
    source: psycopg.Connection, name: str, capture: Capture, *, anew: bool = False
) -> frozenset[str] | None:
    """Make the publication as declared.

    Changes that committed before are published as the publication was then. The server stores column lists and filters
    by column number: if other columns now have those names, the publication is made `anew`.

    Returns:
        None if the publication was as declared: nothing was written or locked. Otherwise the declared tables, as
        `<schema>.<table>`, that it did not publish or published differently. These are all tables if it did not exist,
        or if it was changed and changed back.

    Raises:
        ForeignPublication: A publication of this name exists, and Millrace did not make it.
        psycopg.Error: The source refuses it; `readiness.find_problems` says why.
    """
    found = _state(source, name)
    declared = _digest(_publication_sql(source, name, capture).as_string(source))
    if found is not None:
        if not (found.remark or "").startswith(_MARK):
            raise ForeignPublication(
                f"Publication {name} exists, and Millrace did not make it.",
                detail=f"database: {source.info.dbname}",
                hint="Drop it, or name the capture otherwise: the publication has its name.",
            )
        if (found.remark or "").partition(_PROBED)[0] == _remark(declared, found) and not anew:
            return None
    with source.transaction():
        if found is None:
            source.execute(_publication_sql(source, name, capture))
        else:
            # waits for a run that takes a table out at this moment, and blocks other runs
            comment = sql.SQL("comment on publication {} is {}").format(sql.Identifier(name), found.remark)
            source.execute(comment)
            found = _state(source, name)
            tables = sql.SQL(", ").join(map(_published, capture.tables))
            source.execute(sql.SQL("alter publication {} set table {}").format(sql.Identifier(name), tables))
            source.execute(
                sql.SQL("alter publication {} set ({})").format(
                    sql.Identifier(name), publication_options(source, capture.actions)
                )
            )
        made = _state(source, name)
        assert made is not None
        # the source rewrites a filter in its own form: the comment records both the declaration and the source's form
        source.execute(sql.SQL("comment on publication {} is {}").format(sql.Identifier(name), _remark(declared, made)))
    comparable = found is not None and found.switches == made.switches and not _was_changed_back(found)
    before = found.tables or {} if found is not None and comparable else {}
    after = made.tables or {}
    return frozenset(
        t.name for t in capture.tables if before.get((t.schema, t.table)) != after.get((t.schema, t.table))
    )


def is_as_made(source: psycopg.Connection, name: str) -> bool:
    """Return whether only Millrace changed the publication, whatever the declaration is now."""
    found = _state(source, name)
    return found is not None and _is_as_made(found)


def probed_tables(source: psycopg.Connection, name: str) -> frozenset[str]:
    """Return what `mark_probed` stored; nothing if the publication was changed or made since."""
    return frozenset((_comment(source, name) or "").partition(_PROBED)[2].split())


def mark_probed(source: psycopg.Connection, name: str, probed: frozenset[str]) -> None:
    """Record in the publication's comment which tables need no probe; write nothing if the comment has it."""
    if (comment := _comment(source, name)) is None:
        return
    remark, _, recorded = comment.partition(_PROBED)
    if probed != frozenset(recorded.split()):
        new_comment = f"{remark}{_PROBED}{' '.join(sorted(probed))}" if probed else remark
        source.execute(sql.SQL("comment on publication {} is {}").format(sql.Identifier(name), new_comment))


def drop_publication(source: psycopg.Connection, name: str) -> bool:
    """Remove the publication; return False if there is none, or Millrace did not make it."""
    found = _state(source, name)
    if found is None or not (found.remark or "").startswith(_MARK):
        return False
    source.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(name)))
    return True


def withdraw_refused(source: psycopg.Connection, name: str) -> frozenset[str]:
    """Stop publishing tables if the server refuses the application's changes of them because they are published.

    Return these tables.

    This works whatever else is wrong, and locks no other table. A locked table stays published. All tables stay if
    another session changed the publication and changed it back, which the next run has to find.
    """
    refused = published_tables(source, name).refused
    found = _state(source, name) if refused else None
    if found is None or not (found.remark or "").startswith(_MARK) or _was_changed_back(found):
        return frozenset()
    withdrawn = set()
    as_made = _is_as_made(found)
    for table in sorted(table for table in found.tables or () if table_name(*table) in refused):
        with suppress(*_UNABLE), source.transaction():
            source.execute(sql.SQL("set local lock_timeout = '1s'"))
            drop = sql.SQL("alter publication {} drop table only {}")
            source.execute(drop.format(sql.Identifier(name), sql.Identifier(*table)))
            made = _state(source, name)
            if made is not None and as_made:
                # not the declared state: the next call of `ensure_publication` completes it
                comment = _remark("", made)
                source.execute(sql.SQL("comment on publication {} is {}").format(sql.Identifier(name), comment))
            withdrawn.add(table_name(*table))
    return frozenset(withdrawn)


def withdrawn_tables(source: psycopg.Connection, name: str, published: Collection[str]) -> frozenset[str]:
    """Return those of the formerly `published` tables that `withdraw_refused` took out of the publication.

    They are not in it, and only Millrace changed it.
    """
    found = _state(source, name)
    if found is None or not _is_as_made(found):
        return frozenset()
    return frozenset(published) - {table_name(*table) for table in found.tables or ()}


def _publication_sql(source: psycopg.Connection, name: str, capture: Capture) -> sql.Composed:
    return sql.SQL("create publication {} for table {} with ({})").format(
        sql.Identifier(name),
        sql.SQL(", ").join(map(_published, capture.tables)),
        publication_options(source, capture.actions),
    )


def _published(table: CapturedTable) -> sql.Composed:
    # ONLY: the rows of tables that inherit from it are not its rows. The rows of its partitions are, with or without
    # ONLY.
    published = sql.SQL("only {}").format(sql.Identifier(table.schema, table.table))
    if table.columns is not None:
        published += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, table.columns)))
    if table.where is not None:
        published += sql.SQL(" where ({})").format(condition(table.where))
    return published


def condition(where: str) -> sql.SQL:
    """Return a declared condition as a part of a statement: the capture's author wrote it as SQL."""
    return sql.SQL(where)


def publication_options(source: psycopg.Connection, actions: Iterable[str]) -> sql.Composed:
    """Return the options of a capture's publication."""
    options = sql.SQL("publish = {}, publish_via_partition_root = true").format(", ".join(actions))
    # without it, a server that knows this option refuses updates of a table with the identity FULL
    generated = source.info.server_version >= 180000
    return options + sql.SQL(", publish_generated_columns = stored") if generated else options


def _state(source: psycopg.Connection, name: str) -> _State | None:
    row = source.execute(_STATE, (name,)).fetchone()
    if row is None:
        return None
    remark, switches, schemas, tables, changed, owner, entries = row
    return _State(remark, switches, schemas, _by_table(tables), changed, owner, _by_table(entries))


def _by_table(tables: dict[str, str] | None) -> dict[tuple[str, str], str] | None:
    if tables is None:
        return None
    parts = ((json.loads(name), state) for name, state in tables.items())
    return {(schema, table): state for (schema, table), state in parts}


def _comment(source: psycopg.Connection, name: str) -> str | None:
    """Return the publication's comment, an empty one if it has none; None if there is no such publication."""
    query = "select coalesce(obj_description(oid, 'pg_publication'), '') from pg_publication where pubname = %s"
    row = source.execute(query, (name,)).fetchone()
    return None if row is None else row[0]


def _remark(declared: str, state: _State) -> str:
    entries = _digest(repr(sorted((state.entries or {}).items())))
    return f"{_MARK}: {declared}, {_digest(str(state))}, {entries}, {state.row}, {state.owner}."


def _is_as_made(found: _State) -> bool:
    recorded, current = _REMARK.match(found.remark or ""), _REMARK.match(_remark("", found))
    return recorded is not None and current is not None and recorded.groups() == current.groups()


def _was_changed_back(found: _State) -> bool:
    """Return whether another session changed what we made, even if it changed all of it back.

    A session that only gives the publication another owner changes its row, too. A comment of an earlier version does
    not record that.
    """
    recorded = _REMARK.match(found.remark or "")
    if recorded is None:
        return False
    current = _REMARK.match(_remark("", found))
    assert current is not None
    if recorded["row"] != current["row"] and recorded["owner"] == current["owner"]:
        return True
    return recorded["state"] == current["state"] and recorded["entries"] != current["entries"]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
