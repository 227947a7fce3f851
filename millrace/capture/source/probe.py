"""Asks the server whether tables can be published as declared: by a publication that is rolled back.

Each probe costs the source a transaction id and some log, and takes the lock that a vacuum holds. So one probe covers
many tables together, once for each declaration of a table and each state of it in the catalog. If it fails, each half
of the tables is probed again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import psycopg
from psycopg import sql

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.source.publication import condition, publication_options
from millrace.capture.source.tables import SourceTable

_REFUSAL_ERRORS = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError, psycopg.InternalError)

_FILTER_COLUMNS = """
select distinct r.prrelid::bigint, a.attname::text
from pg_publication p
join pg_publication_rel r on r.prpubid = p.oid
join pg_depend d on d.classid = 'pg_publication_rel'::regclass and d.objid = r.oid and d.refobjid = r.prrelid
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
where p.pubname = %s and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
order by 1, 2
"""

# why a table that is not published yet is not captured now
LOCKED = "another session has locked it, or vacuums it: it is captured once that has ended"
# Tables and partitions in one probe. It locks all of them and their indexes; a server has room for a few thousand
# locks.
TOGETHER = 50


@dataclass(frozen=True)
class _Candidate:
    """A table to probe: its declaration, its present state, and the digest of both."""

    table: CapturedTable
    found: SourceTable
    digest: str

    @property
    def parts(self) -> tuple[SourceTable, ...]:
        """The table, then its partitions that hold rows."""
        return (self.found, *self.found.leaves)


# What the server refuses, by table id; a table that would be published is absent.
_Refusals = Mapping[int, str]


class Probes:
    """The probes of a capture's tables.

    Attributes:
        passed: Digests of the tables that the server would publish as declared, in their present state.
    """

    def __init__(
        self,
        source: psycopg.Connection,
        capture: Capture,
        known_digests: frozenset[str] = frozenset(),
        published: Collection[str] = (),
    ) -> None:
        self.passed: set[str] = set()
        self._source = source
        self._capture = capture
        self._actions = sorted(capture.actions)
        self._known_digests = known_digests
        self._published = published

    def problems(self, tables: Iterable[tuple[CapturedTable, SourceTable]]) -> dict[str, str]:
        """Find what the server would refuse, by the names of tables; skip tables already known to pass."""
        candidates = []
        for table, found in tables:
            digest = sha256(repr((table, self._actions, found)).encode()).hexdigest()[:16]
            if digest in self._known_digests:
                self.passed.add(digest)
            else:
                candidates.append(_Candidate(table, found, digest))
        filtered = [each for each in candidates if each.table.where is not None]
        refusals = self._probe_all(filtered, about_filters=True)
        refusals |= self._probe_all(
            [each for each in candidates if each.found.oid not in refusals], about_filters=False
        )
        self.passed |= {each.digest for each in candidates if each.found.oid not in refusals}
        problems = {each.table.name: refusals.get(each.found.oid) for each in candidates}
        # A vacuum may lock a table for hours. A table that is already published stays captured, and is probed later.
        return {
            name: problem
            for name, problem in problems.items()
            if problem is not None and not (problem == LOCKED and name in self._published)
        }

    def _probe_all(self, candidates: Sequence[_Candidate], *, about_filters: bool) -> dict[int, str]:
        """Probe groups of tables that have about `TOGETHER` parts; a table with more parts is a group of its own."""
        refusals: dict[int, str] = {}
        group: list[_Candidate] = []
        parts = 0
        for each in candidates:
            if group and parts + len(each.parts) > TOGETHER:
                refusals |= self._probe(group, about_filters=about_filters)
                group, parts = [], 0
            group.append(each)
            parts += len(each.parts)
        if group:
            refusals |= self._probe(group, about_filters=about_filters)
        return refusals

    def _probe(self, group: Sequence[_Candidate], *, about_filters: bool) -> _Refusals:
        """Probe tables in a transaction that is rolled back; divide them if it fails."""
        try:
            with self._source.transaction(force_rollback=True):
                _lock(self._source, group)
                return self._publish_filters(group) if about_filters else self._publish_changes(group)
        except (psycopg.errors.LockNotAvailable, *_REFUSAL_ERRORS) as error:
            if len(group) == 1:
                message = str(error.diag.message_primary or error)
                if error.diag.message_detail:
                    message += f" ({error.diag.message_detail})"
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    problem = LOCKED
                elif about_filters:
                    problem = f"where cannot be used: {message}: correct {group[0].table.where!r}"
                else:
                    problem = (
                        f"the server would refuse changes of it once it is published: {message}: change its columns or its"
                        " replica identity"
                    )
                return {group[0].found.oid: problem}
        half = len(group) // 2
        first, second = (self._probe(part, about_filters=about_filters) for part in (group[:half], group[half:]))
        return {**first, **second}

    def _publish_filters(self, group: Sequence[_Candidate]) -> _Refusals:
        """Publish the tables with their filters; return which columns of filters the log does not hold."""
        filters = [
            sql.SQL("only {} where ({})").format(each.found.name, condition(each.table.where or "")) for each in group
        ]
        self._publish(filters)
        if not {"update", "delete"} & set(self._actions):
            return {}
        used: dict[int, list[str]] = {}
        for oid, column in self._source.execute(_FILTER_COLUMNS, (self._name,)):
            used.setdefault(oid, []).append(column)
        outside = {
            each.found.oid: [c for c in used.get(each.found.oid, ()) if c not in each.found.identity_columns]
            for each in group
        }
        return {
            oid: (
                f"where uses {', '.join(columns)}, which the log does not hold of rows before their change:"
                " alter table … replica identity full, or use columns of the replica identity only"
            )
            for oid, columns in outside.items()
            if columns
        }

    def _publish_changes(self, group: Sequence[_Candidate]) -> _Refusals:
        """Publish the tables; let the server refuse the changes of them that it would then refuse."""
        tables = []
        for each in group:
            table = sql.SQL("only {}").format(each.found.name)
            if each.table.columns is not None:
                table += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, each.table.columns)))
            tables.append(table)
        self._publish(tables)
        # the server decides when it plans a statement: no row is touched, no trigger fires
        statements = []
        for part in (part for each in group for part in each.parts):
            if "update" in self._actions:
                first = sql.Identifier(part.columns[0].name)
                statements.append(sql.SQL("explain update only {} set {} = default").format(part.name, first))
            if "delete" in self._actions:
                statements.append(sql.SQL("explain delete from only {}").format(part.name))
        if statements:
            self._source.execute(sql.SQL("; ").join(statements), prepare=False)
        return {}

    @property
    def _name(self) -> str:
        return f"millrace_check_{self._source.info.backend_pid}"

    def _publish(self, tables: Sequence[sql.Composable]) -> None:
        # with the options of the real publication: without them a partitioned table may have no filter
        self._source.execute(
            sql.SQL("create publication {} for table {} with ({})").format(
                sql.Identifier(self._name),
                sql.SQL(", ").join(tables),
                publication_options(self._source, self._actions),
            )
        )


def _lock(source: psycopg.Connection, group: Sequence[_Candidate]) -> None:
    """Take the locks that a publication takes, or fail at once.

    A session that waits for one longer than `deadlock_timeout` cancels an autovacuum. The locks come first, because a
    publication gets a transaction id before it asks for its locks.
    """
    source.execute("set local lock_timeout = '20ms'")
    tables = sql.SQL(", ").join(sql.SQL("only {}").format(each.found.name) for each in group)
    try:
        with source.transaction():
            source.execute(sql.SQL("lock table {} in share update exclusive mode nowait").format(tables))
    except psycopg.errors.InsufficientPrivilege:
        # An owner may have revoked this from itself, and may still publish. If there are several, none is locked now.
        if len(group) > 1:
            raise
