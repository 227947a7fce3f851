"""Asking the server itself whether a table can be published as declared: by a publication that is rolled back.

Belongs here: the question, and which tables need not be asked about again. Not here: what the catalog says
(`readiness`), keeping a publication (`publication`).

The question costs the source a transaction id and some of its log, and takes the lock that a vacuum holds. So it is
asked once for each declaration of a table and each state of the table in the catalog.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256

import psycopg
from psycopg import sql

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.source.publication import condition
from millrace.resources.capture.source.tables import SourceTable, find_leaves

_REFUSALS = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError)

_FILTER_COLUMNS = """
select distinct a.attname::text
from pg_publication p
join pg_publication_rel r on r.prpubid = p.oid
join pg_depend d on d.classid = 'pg_publication_rel'::regclass and d.objid = r.oid and d.refobjid = r.prrelid
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
where p.pubname = %s and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
order by 1
"""

# why a table that nobody has published yet is not captured now
LOCKED = "another session has locked it, or vacuums it: it is captured once that has ended"


class Probes:
    """The questions about a capture's tables.

    Attributes:
        passed: Digests of the tables that the server would publish as declared, as they are now.
    """

    def __init__(
        self,
        source: psycopg.Connection,
        capture: Capture,
        known: frozenset[str] = frozenset(),
        published: Collection[str] = (),
    ) -> None:
        self.passed: set[str] = set()
        self._source = source
        self._capture = capture
        self._known = known
        self._published = published

    def problems(self, table: CapturedTable, found: SourceTable) -> Iterator[str]:
        """Find what the server would refuse, unless that is known."""
        leaves = find_leaves(self._source, found)
        asked = repr((table, sorted(self._capture.actions), found, leaves))
        digest = sha256(asked.encode()).hexdigest()[:16]
        if digest not in self._known:
            try:
                problems = [*_publishing_problems(self._source, self._capture, table, found, leaves)]
            except psycopg.errors.LockNotAvailable:
                # A vacuum may hold the table for hours: what is published already is captured, and asked about later.
                problems = [] if table.name in self._published else [LOCKED]
            else:
                if not problems:
                    self.passed.add(digest)
            yield from problems
        else:
            self.passed.add(digest)


def _publishing_problems(
    source: psycopg.Connection,
    capture: Capture,
    table: CapturedTable,
    found: SourceTable,
    leaves: Sequence[SourceTable],
) -> Iterator[str]:
    """Publish the table, roll that back, and ask the server in between whether it would refuse changes."""
    name = f"millrace_check_{source.info.backend_pid}"
    creation = sql.SQL("create publication {} for table only {}").format(sql.Identifier(name), found.name)
    # of a partitioned table no filter is allowed otherwise
    options = sql.SQL(" with (publish = {}, publish_via_partition_root = true)").format(", ".join(capture.actions))
    if table.where is not None:
        try:
            with source.transaction(force_rollback=True):
                _lock(source, found)
                source.execute(creation + sql.SQL(" where ({})").format(condition(table.where)) + options)
                used = source.execute(_FILTER_COLUMNS, (name,)).fetchall()
        except _REFUSALS as error:
            yield f"where cannot be used: {_said(error)}: correct {table.where!r}"
            return
        outside = [column for (column,) in used if column not in found.identity_columns]
        if outside and {"update", "delete"} & set(capture.actions):
            yield (
                f"where uses {', '.join(outside)}, which the log does not hold of rows before their change:"
                " alter table … replica identity full, or use columns of the replica identity only"
            )
            return
    if table.columns is not None:
        creation += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, table.columns)))
    try:
        with source.transaction(force_rollback=True):
            _lock(source, found)
            source.execute(creation + options)
            # the server judges a statement when it plans it: no row is touched, no trigger fires
            for part in (found, *leaves):
                first = sql.Identifier(part.columns[0].name)
                if "update" in capture.actions:
                    source.execute(sql.SQL("explain update only {} set {} = default").format(part.name, first))
                if "delete" in capture.actions:
                    source.execute(sql.SQL("explain delete from only {}").format(part.name))
    except _REFUSALS as error:
        yield (
            f"the server would refuse changes of it once it is published: {_said(error)}: change its columns or its replica"
            " identity"
        )


def _lock(source: psycopg.Connection, found: SourceTable) -> None:
    """Take the lock that a publication takes, or fail at once.

    Who waits for it longer than `deadlock_timeout` cancels an autovacuum. The lock comes first: a publication has an id
    of a transaction before it asks for its lock.
    """
    source.execute("set local lock_timeout = '20ms'")
    # an owner may have revoked this from itself, and may publish all the same
    with suppress(psycopg.errors.InsufficientPrivilege), source.transaction():
        source.execute(sql.SQL("lock table only {} in share update exclusive mode nowait").format(found.name))


def _said(error: psycopg.Error) -> str:
    detail = error.diag.message_detail
    return f"{error.diag.message_primary or error}{f' ({detail})' if detail else ''}"
