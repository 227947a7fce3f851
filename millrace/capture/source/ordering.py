"""The order of rows by a key: with the operators of the key's index, which may be off the search path."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import psycopg
from psycopg import sql

from millrace.errors import MillraceError

# The operators are those of the index that has the key, or else the default ones of its types.
_PARTS = """
with recursive typed (number, attnum, type_oid, of_domain) as (
  select k.number, a.attnum, a.atttypid, false
  from unnest(%(key)s::text[]) with ordinality k (name, number)
  join pg_attribute a on a.attrelid = %(table)s::oid and a.attname = k.name and a.attnum > 0
  union all
  select number, attnum, t.typbasetype, true
  from typed
  join pg_type t on t.oid = type_oid
  where t.typtype = 'd'
),
indexed (classes) as (
  select i.indclass::oid[]
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_am m on m.oid = c.relam
  where i.indrelid = %(table)s::oid and i.indisvalid and i.indpred is null and m.amname = 'btree'
    and (i.indkey::int2[])[0:cardinality(%(key)s::text[]) - 1]
      = (select array_agg(attnum order by number) from (select distinct number, attnum from typed) k)
  order by not i.indisunique, i.indnkeyatts, i.indexrelid
  limit 1
)
select
  format_type(k.type_oid, -1),
  k.of_domain,
  array(
    select array[n.nspname, o.oprname]::text[]
    from pg_amop s
    join pg_operator o on o.oid = s.amopopr
    join pg_namespace n on n.oid = o.oprnamespace
    where s.amopfamily = c.opcfamily and s.amoplefttype = c.opcintype and s.amoprighttype = c.opcintype
      and s.amopstrategy in (1, 3, 5) and s.amoppurpose = 's'
    order by s.amopstrategy
  )
from typed k
join pg_type t on t.oid = k.type_oid
left join lateral (
  select o.opcfamily, o.opcintype
  from pg_opclass o
  join pg_am m on m.oid = o.opcmethod
  where m.amname = 'btree'
    and case
      when exists (select from indexed) then o.oid = (select classes[k.number - 1] from indexed)
      else o.opcdefault and (
        o.opcintype = k.type_oid
        or o.opcintype = case
          when t.typtype = 'e' then 'anyenum'::regtype
          when t.typtype = 'r' then 'anyrange'::regtype
          when t.typtype = 'm' then 'anymultirange'::regtype
          when t.typtype = 'c' then 'record'::regtype
          when t.typcategory = 'A' then 'anyarray'::regtype
        end
        or exists (
          select from pg_cast b
          where b.castsource = k.type_oid and b.casttarget = o.opcintype and b.castmethod = 'b' and b.castcontext = 'i'
        )
      )
    end
  order by o.opcintype = k.type_oid desc
  limit 1
) c on true
where t.typtype <> 'd'
order by k.number
"""


class KeyUnordered(MillraceError):
    """The rows of a table have no order by its key."""


@dataclass(frozen=True)
class KeyPart:
    """A column of a key.

    Attributes:
        name: Its name.
        type_name: Its type in SQL, with all domains removed: a value of it need not meet the domains' conditions.
        of_domain: Whether a domain was removed. A domain of an enum has no operators.
        less: Schema and name of the operator that orders its values.
        equal: Schema and name of the operator that compares them.
        greater: Schema and name of the operator that finds the values after one.
    """

    name: str
    type_name: str
    of_domain: bool
    less: tuple[str, str]
    equal: tuple[str, str]
    greater: tuple[str, str]

    @property
    def value(self) -> sql.Composable:
        """The expression that its operators compare."""
        name = sql.Identifier(self.name)
        return sql.SQL("{}::{}").format(name, sql.SQL(self.type_name)) if self.of_domain else name


def key_parts(source: psycopg.Connection, table_oid: int, key: Sequence[str]) -> tuple[KeyPart, ...]:
    """Return the columns of a table's key with their operators.

    Raises:
        KeyUnordered: A column's type has no order.
    """
    rows = source.execute(_PARTS, {"table": table_oid, "key": list(key)}).fetchall()
    if unordered := [name for name, (*_, operators) in zip(key, rows, strict=True) if len(operators) != 3]:
        raise KeyUnordered(
            f"Nothing orders the values of {', '.join(unordered)}.",
            detail="its type has no operator class of btree",
            hint="Declare a key of other columns, or leave the table out of the capture.",
        )
    return tuple(
        KeyPart(name, type_name, of_domain, *((schema, operator) for schema, operator in operators))
        for name, (type_name, of_domain, operators) in zip(key, rows, strict=True)
    )


def ordered_by(key: Sequence[KeyPart]) -> sql.Composed:
    """Return the expressions after `order by`."""
    return sql.SQL(", ").join(sql.SQL("{} using {}").format(part.value, _operator(part.less)) for part in key)


def behind(key: Sequence[KeyPart], values: Sequence[sql.Composable]) -> list[sql.Composed]:
    """Return conditions: each row after a key meets exactly one of them, and no other row meets any.

    Columns with an operator of the same name and schema share one condition: an index finds its rows.
    """
    compared = [
        (part, part.value, sql.SQL("{}::{}").format(value, sql.SQL(part.type_name)))
        for part, value in zip(key, values, strict=True)
    ]
    conditions: list[sql.Composed] = []
    equal_before: list[sql.Composed] = []
    for greater, group in groupby(compared, lambda each: each[0].greater):
        parts = list(group)
        left, right = (sql.SQL(", ").join(each[at] for each in parts) for at in (1, 2))
        row = sql.SQL("({}) {} ({})").format(left, _operator(greater), right)
        conditions.append(sql.SQL(" and ").join([*equal_before, row]))
        equal_before += [sql.SQL("{} {} {}").format(name, _operator(part.equal), value) for part, name, value in parts]
    return conditions


def _operator(operator: tuple[str, str]) -> sql.Composed:
    schema, name = operator
    return sql.SQL("operator({}.{})").format(sql.Identifier(schema), sql.SQL(name))
