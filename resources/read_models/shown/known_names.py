"""Names in a declaration that the store does not know: of deciders, events, and fields of data.

Belongs here: telling them, from what is registered, from the newest events and from schemas. Not here: who is told
(`millrace.platform_defs.checks`, `millrace check`). Only a field that schemas forbid is an error: an event may come
later, and a field be rare.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import psycopg

from millrace.resources.events.fields import Reach, Schema, field_types, reach
from millrace.resources.read_models.declared.columns import data_path, item_path
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.upcasts import Upcast, stored_upcasts

# of all deciders, from the newest back, but large ones
LOOKED_AT = 2_000
_MOST_BYTES = 65_536
# how many names a sentence lists
_MOST_NAMED = 20

_WHERE = {"field": "is in none of the newest events", "property": "is in no schema of the events that it is read from"}

# a kind of event that came: decider, event, version
Kind = tuple[str, str, int]

_SEEN = """
with newest as materialized (
  select e.decider, e.event, e.event_version, e.data from event_store.events e order by e."offset" desc limit %(most)s
),
taken as materialized (
  select decider, event, event_version, event_store.upcast(decider, event, event_version, data) as data from newest
  where pg_column_size(data) <= %(bytes)s
    and (%(deciders)s::text[] is null or decider = any (%(deciders)s))
    and (%(events)s::text[] is null or event = any (%(events)s))
)
select decider, event, event_version, array_agg(distinct k.key) filter (where k.key is not null), (
  select array_agg(p.n order by p.n) from jsonb_array_elements(%(paths)s::jsonb) with ordinality p(path, n)
  where exists (
    select from taken t
    cross join lateral (select t.data #> array(select jsonb_array_elements_text(p.path -> 0)) as value) v
    where (t.decider, t.event, t.event_version) = (o.decider, o.event, o.event_version)
      -- what a text that may say an array has is not known
      and case when p.path -> 1 is null or jsonb_typeof(v.value) = 'string' then v.value is not null else exists (
        select from jsonb_array_elements(case jsonb_typeof(v.value) when 'array' then v.value end) i(item)
        where i.item #> array(select jsonb_array_elements_text(p.path -> 1)) is not null
      ) end
  )
)
from taken o
left join lateral jsonb_object_keys(case jsonb_typeof(o.data) when 'object' then o.data end) k(key) on true
group by decider, event, event_version
"""


@dataclass(frozen=True)
class _Reader:
    """What reads a field, in words, and the events and the decider that it looks at; None for all of the model's."""

    column: str
    source: str
    events: tuple[str, ...] | None
    decider: str | None = None


def unknown_names(connection: psycopg.Connection, model: ReadModel) -> list[str]:
    """Return a sentence for each name in a declaration that no registration, or none of the newest events, has.

    A field that one version of an event has and another version has not is told, too, if no upcast gives it to that
    other version: columns that read it do not see its events.
    """
    registered = connection.execute("select distinct decider, event from event_store.deciders").fetchall()
    if not registered:
        return []  # a new store knows no name yet
    deciders = {decider for decider, _ in registered}
    events = {event for decider, event in registered if model.deciders is None or decider in model.deciders}
    said = [_unknown("decider", name, deciders) for name in model.deciders or () if name not in deciders]
    readers = _readers(model)
    named = {
        *(model.events or ()),
        *model.deletes,
        *(e for column in model.columns.values() for e in column.events or ()),
    }
    # of deciders that nobody registered every event is unknown
    said += [_unknown("event", name, events) for name in sorted(named - events) if events]
    paths: dict[str, list[tuple[str, ...] | None]] = {source: [path] for source, path in model.extracted.items()}
    if model.items is not None:
        paths |= {source: [data_path(model.items.array), path] for source, path in model.items.paths.items()}
    sources = sorted(paths)
    found = connection.execute(
        _SEEN,
        {
            "most": LOOKED_AT,
            "bytes": _MOST_BYTES,
            "deciders": None if model.deciders is None else [*model.deciders],
            "events": None if model.events is None else [*model.events],
            "paths": json.dumps([paths[source] for source in sources]),
        },
    ).fetchall()
    keys: dict[Kind, set[str]] = {(d, e, v): set(names or ()) for d, e, v, names, _ in found}
    has: dict[Kind, set[str]] = {(d, e, v): {sources[n - 1] for n in numbers or ()} for d, e, v, _, numbers in found}
    moved = dict(_moved(stored_upcasts(connection), model))
    return said + [sentence for reader in readers for sentence in _of_field(reader, keys, has, moved)]


def _moved(upcasts: Iterable[Upcast], model: ReadModel) -> Iterator[tuple[str, str]]:
    """Return the fields that are elsewhere, or gone, in a newer version of an event that the model takes, and where."""
    for upcast in model.of_taken_events(upcasts):
        for move in upcast.parsed:
            if move["move"] in {"rename", "drop"}:
                field = ".".join(["data", *move["path"]])
                became = f"is {'.'.join(['data', *move['to']])}" if "to" in move else "is no more"
                yield field, f"{became} since version {upcast.to_version} of {upcast.event} of {upcast.decider}"


def unknown_properties(model: ReadModel, schemas: Mapping[Kind, Schema | None]) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each field in a declaration that no schema of the events it is read from names.

    With it goes whether all of these schemas forbid the field, so that it is never there.

    Args:
        model: The read model.
        schemas: All kinds of event, each with its schema; None for an event without one, which may have every field.
    """
    for reader in _readers(model):
        taken = [
            schema
            for (decider, event, _), schema in schemas.items()
            if all(known is None or name in known for name, known in (
                (decider, model.deciders), (event, model.events), (event, reader.events)
            ))
            and reader.decider in {None, decider}
        ]  # fmt: skip
        judging = [schema for schema in taken if schema is not None]
        of_item = item_path(reader.source)
        path = data_path(reader.source) if of_item is None else (*(data_path(str(model.each)) or ()), "0", *of_item)
        reached = {reach(schema, path or ()) for schema in judging}
        if judging and Reach.NAMED not in reached:
            named = {f"data.{name}" for schema in judging for name in field_types(schema)}
            forbidden = reached == {Reach.NEVER} and len(judging) == len(taken)
            yield f"{reader.column}: " + _unknown("property", reader.source, named), forbidden


def _readers(model: ReadModel) -> list[_Reader]:
    keys = [
        _Reader(f"column {name}" if name in model.keys else name, source, None, decider)
        for name, key in model.read_keys.items()
        for decider, source in key.by_decider or ((None, key.source),)
    ]
    read = [(name, source, column.events) for name, column in model.columns.items() for source in column.sources]
    readers = [*keys, *(_Reader(f"column {name}", source, events) for name, source, events in read)]
    return [reader for reader in readers if data_path(reader.source) or item_path(reader.source) is not None]


def _of_field(
    reader: _Reader, keys: dict[Kind, set[str]], has: dict[Kind, set[str]], moved: dict[str, str]
) -> Iterator[str]:
    kinds = [
        kind
        for kind in has
        if (reader.events is None or kind[1] in reader.events) and reader.decider in {None, kind[0]}
    ]
    if not kinds:
        return
    if not any(reader.source in has[kind] for kind in kinds):
        there = set().union(*(keys[kind] for kind in kinds))
        dotted = ".".join(data_path(reader.source) or ())
        if item_path(reader.source) is not None:
            yield f"{reader.column}: {reader.source} is in no element that each= names of the newest events"
        elif reader.source in moved:
            yield f"{reader.column}: field {reader.source} {moved[reader.source]}"
        elif "." in dotted and dotted in there:
            yield (
                f"{reader.column}: {reader.source} is a path of {dotted.count('.') + 1} keys, and events have one key"
                f" {dotted!r}; no column reads a key with a dot: append the event with another one, or use a fold"
            )
        else:
            yield f"{reader.column}: " + _unknown("field", reader.source, {f"data.{key}" for key in there})
        return
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for decider, event, version in kinds:
        versions[decider, event].append(version)
    for (decider, event), known in sorted(versions.items()):
        without = sorted(version for version in known if reader.source not in has[decider, event, version])
        if without and len(without) < len(known):
            yield (
                f"{reader.column}: {event} of {decider} has no {reader.source} in version"
                f" {', '.join(map(str, without))}, and has it in others; the column does not change with these events"
            )


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    where = _WHERE.get(kind, "is not registered")
    ordered: Sequence[str] = sorted(known)
    near = get_close_matches(name, ordered, 1)
    # of a path of two keys the first one may be right
    if near and not name.startswith(f"{near[0]}."):
        return f"{kind} {name} {where}; did you mean {near[0]}?"
    return f"{kind} {name} {where}; there are {', '.join(ordered[:_MOST_NAMED]) or 'none'}"
