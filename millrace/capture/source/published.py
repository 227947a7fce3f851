"""Published tables in the catalog now: whether the server refuses their changes, and which columns identify rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from millrace.capture.declaration import table_name
from millrace.capture.source.tables import ENUMS

# The rules by which a server judges an update before it runs it. Those about generated columns came with version 18.
# A partition is judged by its own identity, and by the columns and the filter of its root.
_PUBLISHED = """
with recursive published (root, entry, columns, filtered, generated) as (
  select
    r.prrelid,
    r.oid,
    case when r.prattrs is not null then array(
      select a.attname from pg_attribute a where a.attrelid = r.prrelid and a.attnum = any (r.prattrs::int2[])
    ) end,
    array(
      select a.attname
      from pg_depend d
      join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
      where r.prqual is not null and d.classid = 'pg_publication_rel'::regclass and d.objid = r.oid
        and d.refclassid = 'pg_class'::regclass and d.refobjid = r.prrelid and d.refobjsubid > 0
    ),
    coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's'
  from pg_publication p
  join pg_publication_rel r on r.prpubid = p.oid
  where p.pubname = %s
),
part (root, oid) as (
  select root, root from published
  union all
  select part.root, i.inhrelid
  from part
  join pg_class c on c.oid = part.oid and c.relkind = 'p'
  join pg_inherits i on i.inhparent = part.oid and not i.inhdetachpending
),
named (root, oid, kind, identity, key, identified) as (
  select
    part.root,
    part.oid,
    c.relkind,
    c.relreplident,
    max(x.names) filter (where x.indisprimary),
    max(x.names) filter (where case c.relreplident when 'd' then x.indisprimary when 'i' then x.indisreplident end)
  from part
  join pg_class c on c.oid = part.oid
  left join lateral (
    select i.indisprimary, i.indisreplident, array(
      select a.attname
      from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k
      join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k
      order by a.attnum
    ) as names
    from pg_index i
    where i.indrelid = part.oid and (i.indisprimary or i.indisreplident) and i.indisvalid and i.indimmediate
  ) x on true
  group by part.root, part.oid, c.relkind, c.relreplident
),
asked (oid) as (select root from published),
"""
_STATES = """
select
  root.oid::bigint,
  n.nspname,
  root.relname,
  (s.pubupdate or s.pubdelete) and bool_or(
    t.kind = 'r' and (
      t.identity = 'n'
      or t.identity in ('d', 'i') and (
        t.identified is null or not p.filtered <@ t.identified or not t.identified <@ p.columns
      )
      or t.identity = 'f' and p.columns is not null
      or current_setting('server_version_num')::int >= 180000 and exists (
        select from pg_attribute a
        where a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
          and (a.attgenerated = 'v' or a.attgenerated = 's' and not p.generated)
          and (t.identity = 'f' or p.columns is null and a.attname = any (t.identified))
      )
    )
  ) is true,
  md5(concat(
    string_agg(concat_ws(' ', t.oid, t.identity, t.key, t.identified), ',' order by t.oid),
    -- an enum's label names a row, too
    (select string_agg(concat_ws(' ', l.oid, l.label), ',' order by l.oid) from labelled l where l.relation = root.oid)
  ))
from published p
join named t on t.root = p.root
join pg_class root on root.oid = p.root
join pg_namespace n on n.oid = root.relnamespace
join pg_publication s on s.pubname = %s
group by root.oid, n.nspname, root.relname, s.pubupdate, s.pubdelete
"""


@dataclass(frozen=True)
class PublishedTables:
    """The tables of a publication.

    Attributes:
        refused: The names of tables with updates or deletes that the server refuses because of what is published.
        states: By id, a value that changes if other columns identify a table's rows, or if its partitions or the
            labels of its enums change.
    """

    refused: frozenset[str]
    states: Mapping[int, str]

    def since(self, before: "PublishedTables") -> "PublishedTables":
        """Return the same tables, each in its earlier state if it was published then."""
        return PublishedTables(self.refused, {oid: before.states.get(oid, state) for oid, state in self.states.items()})

    def is_another(self, since: "PublishedTables") -> bool:
        """Return whether a table that was published then is now refused, gone, or identified differently."""
        return bool(self.refused - since.refused) or any(
            self.states.get(oid) != state for oid, state in since.states.items()
        )


def published_tables(source: psycopg.Connection, publication: str) -> PublishedTables:
    """Look at the tables of a publication, without waiting for a lock."""
    # planning it takes longer than running it
    found = source.execute(_PUBLISHED + ENUMS + _STATES, (publication, publication), prepare=True).fetchall()
    return PublishedTables(
        frozenset(table_name(schema, table) for _, schema, table, refused, _ in found if refused),
        {oid: state for oid, _, _, _, state in found},
    )
