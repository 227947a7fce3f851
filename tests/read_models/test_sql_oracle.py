"""Given one log of odd events, when models of columns are drained and rebuilt, then their rows are those of SQL."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import duckdb
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.multirange import Multirange

from millrace import (
    avg,
    bucket,
    carried,
    computed,
    count,
    field,
    first,
    last,
    latest,
    lookup,
    max_,
    min_,
    read_model,
    rollup,
    row,
    sessions,
    stream_id,
    sum_,
    top,
)
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.declared.buckets import _zones
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from tests.support.building.event_log_reads import append_json
from tests.support.building.lab import Lab
from tests.support.factories import rows
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MONEY = "decimal(18,2)"
ORDER, PAYMENT = "order", "payment"
BOTH = [ORDER, PAYMENT]
# a stream of this name ends with an event that no model can read
BAD = "bad"

# both sides of a change of clocks, a skipped midnight, equal times, and none
TIMES = [
    *(f'"2024-03-31T0{hour}:30:00+0{offset}:00"' for hour, offset in ((0, 1), (1, 1), (3, 2), (4, 2))),
    *(f'"2024-10-27T0{hour}:30:00+0{offset}:00"' for hour, offset in ((2, 2), (2, 1), (3, 1), (0, 2))),
    '"2018-11-04T02:59:59.999999Z"', '"2018-11-04T03:00:00Z"', '"2018-11-04T05:00:00Z"', '"2024-02-29"',
    '"2024-12-31T23:59:59.999999+00:00"', '"2024-06-01T12:00:00Z"', '"2024-06-01T12:00:00Z"', "null",
]  # fmt: skip
CITIES = ['"Ulm"', '"ulm"', '"Köln"', '""', "null", "5", "true", "[null]", "{}", '"2024"']
LINES = [
    '{"sku": "a", "pieces": 3, "price": 1.50, "size": {"b": [1.5, null, true], "a": "é\\"\\\\"}}',
    '{"sku": "b", "pieces": "-12", "price": "7.50", "size": "\\u0001\\n\\\\u0000"}',
    '{"sku": "ü", "pieces": 4, "price": 1e1, "size": []}',
    '{"sku": 7, "pieces": 4, "price": null, "of": {"who": "ann"}}',
    '{"sku": {"is": "a"}, "pieces": 9007199254740993, "of": "ann"}',
    '{"sku": null, "pieces": "no number"}',
    *("{}", "null", "5", "true", '"a"', "[]", '[{"sku": "a"}]'),
]
# no arrays, the last ones in a text
NO_LINES = ["5", "true", '"a"', "{}", '{"sku": "a"}', '""', '"null"', '"[1"', '"[1]]"', '"[NaN]"']
NO_LINES += [r'"[\"\\ud800\"]"', r'"[\"\\u0000\"]"', f'"{"[" * 5_000}{"]" * 5_000}"']
AMOUNTS = ["0", "-5", "12.34", '"7.50"', "null", "99999.99"]


@read_model(view="ranked", deciders=BOTH, key=["city"])
class Ranked:
    """One row per city: the newest, the most, the first and the last by the events' own times."""

    city = field("data.city")
    newest = latest("data.amount", 3, type=MONEY)
    newest_made = latest("data.at", 2, type="timestamp", events=["made"])
    most = top("data.amount", 4, type=MONEY)
    latest_orders = top("data.order_id", 3, by="data.at", by_type="timestamp")
    last_names = top("created_at", 5, by="data.order_id", by_type="string")
    visits = sessions("data.at", gap="1 hour")
    paid_visits = sessions("created_at", gap="1 sec", events=["paid"])
    begun_by = first("data.order_id", by="data.at", by_type="timestamp")
    ended_by = last("decider_id", by="data.at", by_type="timestamp", events=["paid"])


@read_model(view="paid", deciders=BOTH, key=["order_id"])
class Paid:
    """One row per order, of its own events and those of the payments that name it."""

    order_id = field({ORDER: "decider_id", PAYMENT: "data.order_id"})
    events = count()
    made = count(events=["made"])
    paid = sum_("data.amount", type=MONEY, events=["paid"])
    city = last("data.city")
    begun_at = min_("data.at", type="timestamp")
    ended_at = max_("data.at", type="timestamp")
    newest = latest("data.amount", 1, type=MONEY)
    took = computed("ended_at - begun_at")
    per_hour = computed("made * 3600.0 / seconds(took)")
    in_ulm = computed("city == 'Ulm' or not (paid >= 0.01 and made < events)")
    rest = computed("-(1.19 * paid - 2)")
    ended_there = lookup(cast("ReadModel", Ranked), on="city", column="ended_by")


@read_model(view="days", deciders=BOTH, key=["day", "city"])
class Days:
    """One row per city and day in Berlin, of orders by when they say, of payments by when they were paid."""

    day = bucket({ORDER: "data.at", PAYMENT: "data.paid_at"}, every="1 day", zone="Europe/Berlin")
    city = field("data.city")
    events = count()
    worth = sum_("data.amount", type=MONEY)


@read_model(view="hours", deciders=[ORDER], key=["hour", "shift"])
class Hours:
    """One row per hour in Berlin, and shift."""

    hour = bucket("data.at", every="1 hour", zone="Europe/Berlin")
    shift = bucket("data.at", every="6 hour", zone="Europe/Berlin")
    events = count()


@read_model(view="lengths", deciders=BOTH, key=["minutes", "week", "month", "year", "appended"])
class Lengths:
    """One row per bucket of each other length, and per minute of appending."""

    minutes = bucket("data.at", every="30 min", zone="Asia/Kathmandu")
    week = bucket("data.at", every="1 week", zone="America/Sao_Paulo")
    month = bucket("data.at", every="1 month", zone="Asia/Tokyo")
    year = bucket("data.at", every="1 year")
    appended = bucket("created_at", every="1 min", zone="UTC")
    events = count()


@read_model(view="streams", deciders=BOTH, key=["id"], deletes=["paid"])
class Streams:
    """One row per id, unless its last event removed it."""

    id = stream_id()
    city = last("data.city")
    events = count()
    worth = sum_("data.amount", type=MONEY)
    seen_at = last("data.at", type="timestamp")
    is_small = computed("worth / events < 1000")


@rollup(of=Streams, key=["city", "is_small", "month"])
class Cities:
    """Streams by city, by size and by the month in Berlin in which they were seen."""

    city = row("city")
    is_small = row("is_small")
    month = bucket("seen_at", every="1 month", zone="Europe/Berlin")
    streams = count()
    seen = count("seen_at")
    worth = sum_("worth", type=MONEY)
    events = sum_("events")
    mean = avg("worth")


@read_model(view="sold", deciders=BOTH, key=["sku"], each="data.lines")
class Sold:
    """One row per article that lines name."""

    sku = field("item.sku")
    lines = count()
    made = count("item.size", events=["made"])
    pieces = sum_("item.pieces")
    paid = sum_("item.price", type=MONEY, events=["paid"])
    whole = first("item")
    size = last("item.size")
    newest = latest("item.price", 4, type=MONEY)
    most = top("item.size", 3, by="item.pieces", by_type="bigint")
    city = last("data.city")
    until = max_("data.at", type="timestamp")
    latest_pieces = last("item.pieces", type="bigint", by="data.at", by_type="timestamp")
    who = last("item.of.who")


@read_model(view="going_lines", deciders=[ORDER], key=["order_id", "line"], each="data.lines", deletes=["paid"])
class GoingLines:
    """One row per order and line of it as it is written, until that one is paid."""

    order_id = stream_id()
    line = field("item")
    times = count()


@read_model(view="carrying", deciders=BOTH, key=["city", "of"])
class Carrying:
    """One row per city that a stream named last, and kind of event."""

    city = carried("data.city")
    of = field("event")
    events = count()
    named = count("data.city")
    worth = sum_("data.amount", type=MONEY)
    last_at = last("data.at", type="timestamp")


@read_model(
    view="carrying_paid", deciders=[PAYMENT], events=["paid"], key=["city", "order_id", "line"], each="data.lines"
)
class CarryingPaid:
    """One row per line of payments, city and order, as payments named them last."""

    city = carried("data.city")
    order_id = carried("data.order_id")
    line = field("item")
    lines = count()


NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)


@read_model(view="judged", deciders=BOTH, key=["of"])
class Judged:
    """One row per kind of event: the values of those that meet conditions by value."""

    of = field("event")
    five = count(where={"data.amount": -5})
    cheap = count(where={"data.amount": {"<": 12.34}})
    paid_some = sum_("data.amount", type=MONEY, events=["paid"], where={"data.amount": {">=": 0, "<=": 12.34}})
    mean = avg("data.amount", type=MONEY, where={"data.city": {"!=": ["Ulm", "ulm"]}})
    in_ulm = count(where={"data.city": ["Ulm", "ulm"]})
    nowhere = count("data.amount", where={"data.city": None})
    known = count(where={"data.city": {"!=": None}, "data.order_id": {">": "id-3"}})
    true_city = count(where={"data.city": True})
    no_five = count(where={"data.city": {"!=": 5}})
    until_noon = max_("data.at", type="timestamp", where={"data.at": {"<=": NOON}})
    at_noon_or_never = last("decider_id", where={"data.at": [NOON, None]})
    of_orders = top("data.amount", 2, type=MONEY, where={"decider": "order", "created_at": {">": NOON}})
    first_small = first("data.city", by="data.at", by_type="timestamp", where={"data.amount": {"<": 8}})


@read_model(view="judged_lines", deciders=BOTH, key=["sku"], each="data.lines")
class JudgedLines:
    """One row per article: the lines that meet conditions on them and on their event."""

    sku = field("item.sku")
    many = count(where={"item.pieces": {">": 3}})
    of_ulm = sum_("item.price", type=MONEY, where={"data.city": "Ulm", "item.price": {"!=": None}})


def begin(unit: str, time: str, zone: str) -> str:
    return f"date_trunc('{unit}', ({time}) at time zone '{zone}') at time zone '{zone}'"


def spans(time: str, gap: str, where: str = "true") -> str:
    """Return sessions as pairs, by the usual query for gaps and islands."""
    return f"""
        coalesce((
          select list([begun, ended] order by begun) from (
            select min(t) as begun, max(t) as ended from (
              select t, count(*) filter (is_new) over (order by t rows unbounded preceding) as session from (
                select t, coalesce(t > lag(t) over (order by t) + interval '{gap}', true) as is_new from (
                  select distinct {time} as t from events e where e.data->>'city' = events.data->>'city' and {where}
                ) where t is not null))
            group by session)), [])
        """


AT, BERLIN = "(data->>'at')::timestamptz", "Europe/Berlin"
AMOUNT = "(data->>'amount')::decimal(38,2)"
NUMBER = "try_cast(data->>'amount' as decimal(38,2))"
ORDER_ID = "data->>'order_id'"


def best(value: str, most: int, by: str, where: str = "true") -> str:
    return (
        f'coalesce((list({value} order by {by} desc, "offset" desc)'
        f" filter (where {value} is not null and {by} is not null and {where}))[1:{most}], [])"
    )


ARRAY = "if(json_type(data->'lines') <> 'VARCHAR', data->'lines', if(json_valid(data->>'lines'), data->>'lines', '0'))"
# a row for each line; within an event, in the order of its lines
ITEMS = f"""(
    select * replace ("offset" * 100 + n as "offset"), item->>'sku' as sku, (item->>'price')::decimal(38,2) as price
    from (
      select * exclude lines, unnest(lines) as item, generate_subscripts(lines, 1) as n
      from (select *, {ARRAY}::json[] as lines from events where json_type({ARRAY}) = 'ARRAY')))"""
PIECES = "(item->>'pieces')::bigint"
SIZE = "item->>'size'"


def carry(name: str) -> str:
    """Return SQL for the last value of a field in an event's stream, at or before the event."""
    return f"""
        last_value(data->>'{name}' ignore nulls) over (partition by decider, decider_id order by "offset")"""


ENDED_BY = f"""{best("decider_id", 1, AT, "event = 'paid'")}[1]"""
STREAMS = f"""
    select decider_id, arg_max(data->>'city', "offset") as city, count(*) as events,
      coalesce(sum({AMOUNT}), 0) as worth, arg_max({AT}, "offset") as seen, worth / count(*) < 1000 as is_small
    from events group by 1 having arg_max(event, "offset") <> 'paid'
    """
# the rows of each model, and of each rollup, as SQL over all events
SQL = {
    "paid": f"""
        select order_id, count(*), count(*) filter (event = 'made'),
          coalesce(sum({AMOUNT}) filter (event = 'paid'), 0) as paid, arg_max(data->>'city', "offset") as city,
          min({AT}) as begun, max({AT}) as ended,
          {best(AMOUNT, 1, '"offset"')}, ended - begun as took,
          count(*) filter (event = 'made') * 3600 / nullif(epoch(took), 0),
          city = 'Ulm' or not (paid >= 0.01 and count(*) filter (event = 'made') < count(*)), -(1.19 * paid - 2),
          (select {ENDED_BY} from events e where e.data->>'city' = city)
        from (select *, if(decider = 'order', decider_id, data->>'order_id') order_id from events)
        where order_id is not null group by order_id
        """,
    "days": f"""
        select {begin("day", "moment", BERLIN)} as day, data->>'city', count(*), coalesce(sum({AMOUNT}), 0)
        from (select *, if(decider = 'order', data->>'at', data->>'paid_at')::timestamptz as moment from events)
        where moment is not null and data->>'city' is not null group by 1, 2
        """,
    "hours": f"""
        select {AT} - (local - date_trunc('hour', local)) as hour,
          time_bucket(interval '6 hours', local) at time zone '{BERLIN}' as shift, count(*)
        from (select *, {AT} at time zone '{BERLIN}' as local from events where decider = 'order')
        where local is not null group by 1, 2
        """,
    "lengths": f"""
        select {AT} - (local - time_bucket(interval '30 minutes', local)), {begin("week", AT, "America/Sao_Paulo")},
          {begin("month", AT, "Asia/Tokyo")}, date_trunc('year', {AT}), date_trunc('minute', created_at), count(*)
        from (select *, {AT} at time zone 'Asia/Kathmandu' as local from events)
        where local is not null group by 1, 2, 3, 4, 5
        """,
    "streams": STREAMS,
    "cities": f"""
        select city, is_small, {begin("month", "seen", BERLIN)}, count(*), count(seen), sum(worth), sum(events)::decimal,
          avg(worth)
        from ({STREAMS}) group by 1, 2, 3
        """,
    "ranked": f"""
        select data->>'city', {best(AMOUNT, 3, '"offset"')}, {best(AT, 2, '"offset"', "event = 'made'")},
          {best(AMOUNT, 4, AMOUNT)}, {best(ORDER_ID, 3, AT)}, {best("created_at", 5, ORDER_ID)},
          {spans(AT, "1 hour")}, {spans("created_at", "1 second", "event = 'paid'")},
          first({ORDER_ID} order by {AT}, "offset") filter (where {ORDER_ID} is not null and {AT} is not null),
          {ENDED_BY}
        from events where data->>'city' is not null group by 1
        """,
    "sold": f"""
        select sku, count(*), count({SIZE}) filter (event = 'made'), coalesce(sum({PIECES}), 0)::bigint,
          coalesce(sum(price) filter (event = 'paid'), 0), arg_min(item::text, "offset"), arg_max({SIZE}, "offset"),
          {best("price", 4, '"offset"')}, {best(SIZE, 3, PIECES)}, arg_max(data->>'city', "offset"), max({AT}),
          {best(PIECES, 1, AT)}[1], arg_max(item->'of'->>'who', "offset")
        from {ITEMS} where sku is not null group by 1
        """,
    "carrying": f"""
        select named, event, count(*), count(data->>'city'), coalesce(sum({AMOUNT}), 0),
          arg_max({AT}, "offset")
        from (select *, {carry("city")} as named from events) where named is not null group by named, event
        """,
    "carrying_paid": f"""
        select city, order_id, line, count(*)
        from (
          select *, item->>'$' as line from {ITEMS}
          join (
            select "offset" as of_event, {carry("city")} as city, {carry("order_id")} as order_id
            from events where decider = 'payment' and event = 'paid'
          ) on of_event = "offset" // 100
        )
        where city is not null and order_id is not null and line is not null group by 1, 2, 3
        """,
    "judged": f"""
        select event, count(*) filter ({NUMBER} = -5), count(*) filter ({NUMBER} < 12.34),
          coalesce(sum({AMOUNT}) filter (event = 'paid' and {NUMBER} between 0 and 12.34), 0),
          avg({AMOUNT}) filter (data->>'city' not in ('Ulm', 'ulm')), count(*) filter (data->>'city' in ('Ulm', 'ulm')),
          count(data->>'amount') filter (data->>'city' is null),
          count(*) filter (data->>'city' is not null and {ORDER_ID} > 'id-3'), count(*) filter (data->>'city' = 'true'),
          count(*) filter (data->>'city' <> '5'), -- which a text that is no number is not
          max({AT}) filter ({AT} <= '{NOON}'),
          arg_max(decider_id, "offset") filter ({AT} is null or {AT} = '{NOON}'),
          {best(AMOUNT, 2, AMOUNT, f"decider = 'order' and created_at > '{NOON}'")},
          first(data->>'city' order by {AT}, "offset")
            filter (data->>'city' is not null and {AT} is not null and {NUMBER} < 8)
        from events group by 1
        """,
    "judged_lines": f"""
        select sku, count(*) filter ({PIECES} > 3), coalesce(sum(price) filter (data->>'city' = 'Ulm'), 0)
        from {ITEMS} where sku is not null group by 1
        """,
    "going_lines": f"""
        select decider_id, line, count(*)
        from (select *, item->>'$' as line from {ITEMS} where decider = 'order') where line is not null group by 1, 2
        having arg_max(event, "offset") <> 'paid'
        """,
}
MODELS = {
    model.name: model
    for model in cast(
        "list[ReadModel]",
        [Ranked, Paid, Days, Hours, Lengths, Sold, GoingLines, Carrying, CarryingPaid, Judged, JudgedLines],
    )
}
MODELS["streams"] = replace(cast("ReadModel", Streams), rollups=(cast("Rollup", Cities),))
REBUILT = 7


class Built(NamedTuple):
    """A store with built models, and DuckDB with its events except those that no model can read."""

    store: PlatformStore
    oracle: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def built(postgres: EmbeddedPostgres, template: str, spark: "SparkSession") -> Iterator[Built]:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database sql_oracle template {template}".encode())
        dsn = postgres.dsn("sql_oracle")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("set timezone = 'UTC'")
            yield Built(PlatformStore(connection), _oracle(_build(Lab(connection, dsn, spark))))
        admin.execute("drop database sql_oracle with (force)")


def _build(lab: Lab, seed: int = 0) -> list[tuple[Any, ...]]:
    """Append in parts, drain each part in rounds of all models, rebuild a log partition; return the events."""
    dice = random.Random(seed)
    for decider in BOTH:
        for event in ("made", "paid"):
            lab.register_decider_event(decider, event, f"it was {event}")
    with lab.together(list(MODELS.values())) as shared:
        for part in range(3):
            for _ in range(dice.randint(2, 5)):
                decider = dice.choice(BOTH)
                append_json(lab, decider, [_event(dice) for _ in range(dice.randint(1, 40))])
            if part == 1:
                append_json(lab, ORDER, [(BAD, "made", '{"at": "2024-06-01"}'), (BAD, "made", '{"at": "at noon"}')])
                for n, lines in enumerate(NO_LINES):
                    bad = [(f"{BAD}-{n}", "made", f'{{"lines": {one}}}') for one in ('[{"sku": "b"}]', lines)]
                    append_json(lab, PAYMENT, bad)
            shared.run(budget_s=patience(), idle_s=0)
    for model in MODELS.values():
        lab.rebuild(model, REBUILT)
    return lab.rows(
        'select decider, decider_id, event, e."offset", created_at, data::text from event_store.events e'
        " where data ->> 'at' is distinct from 'at noon'"
    )


def _event(dice: random.Random) -> tuple[str, str, str]:
    choices = {
        "at": TIMES, "paid_at": TIMES, "city": CITIES, "amount": AMOUNTS,
        "order_id": [f'"id-{number}"' for number in range(8)] + ["null"],
        "lines": ["null", _lines(dice), _lines(dice), json.dumps(_lines(dice))],
    }  # fmt: skip
    found = [f'"{name}": {dice.choice(values)}' for name, values in choices.items() if dice.random() < 0.85]
    return f"id-{dice.randrange(12)}", dice.choice(["made", "paid"]), f"{{{', '.join(found)}}}"


def _lines(dice: random.Random) -> str:
    return f"[{', '.join(dice.choices(LINES, k=dice.randint(0, 6)))}]"


def _oracle(events: list[tuple[Any, ...]]) -> duckdb.DuckDBPyConnection:
    oracle = duckdb.connect()
    oracle.execute("set timezone = 'UTC'")
    oracle.execute(
        'create table events (decider text, decider_id text, event text, "offset" bigint, created_at timestamptz, data json)'
    )
    oracle.executemany("insert into events values (?, ?, ?, ?, ?, ?)", events)
    return oracle


def plain(value: object) -> object:
    """Return a value as one that is equal in both databases."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Decimal | float):
        return int(value) if value == value // 1 else str(round(float(value), 6))
    if isinstance(value, Multirange):
        assert {one.bounds for one in value} <= {"[]"}
        return [[plain(one.lower), plain(one.upper)] for one in value]
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        return json.loads(value)
    return [plain(one) for one in value] if isinstance(value, list) else value


def ordered(found: list[tuple[Any, ...]]) -> list[str]:
    return sorted(repr([plain(one) for one in row]) for row in found)


@pytest.mark.parametrize("name", SQL)
def test_rows_are_those_of_sql_over_all_events(built: Built, name: str) -> None:
    found = ordered(rows(built.store.connection, f"select * from read_models.{name}"))
    assert found == ordered(built.oracle.execute(SQL[name]).fetchall())
    assert len(found) > 1


def test_an_event_of_no_time_fails_its_stream_where_that_is_read(built: Built) -> None:
    # the other models skip an event without the city of their keys, or without lines;
    # a text that is no time meets no comparison with a time
    failed = rows(
        built.store.connection,
        "select view, decider_id, last_error from event_store.stream_locks"
        " where view not in ('sold', 'going_lines', 'judged_lines')",
    )
    assert {each[:2] for each in failed} == {(name, BAD) for name in ("paid", "hours", "lengths", "streams")}
    assert all("data.at" in error and "is 'at noon', which is not exactly a timestamp" in error for *_, error in failed)


def test_an_event_whose_array_is_none_fails_its_stream(built: Built) -> None:
    failed = rows(
        built.store.connection,
        "select decider_id, last_error from event_store.stream_locks where view in ('sold', 'going_lines') order by 1",
    )
    said = {f"{BAD}-{n}": _said(lines) for n, lines in enumerate(NO_LINES)}
    assert {stream for stream, _ in failed} == {*said}
    for stream, error in failed:
        assert f"data.lines is '{said[stream]}', which is not exactly a JSON array" in error


def _said(lines: str) -> str:
    text = json.loads(lines)
    return (text if isinstance(text, str) else lines)[:100]


KEPT = top("data.a", 3, by="data.b", by_type="string").state("kept")
VISITS = sessions("data.at", gap="10 sec").state("visits")
# partial values of no event, which are neutral, and of one event: its rank and its time
NOTHING: tuple[list[object], ...] = ([], [], [], [], [])
EVENT = st.tuples(st.sampled_from(["", "a", "B", "é"]), st.integers(0, 80))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | EVENT, min_size=1, max_size=12), st.randoms())
def test_merges_have_no_order(built: Built, events: list[tuple[str, int] | None], dice: random.Random) -> None:
    """So merges are associative and commutative, and no event is neutral."""
    parts: list[tuple[int, tuple[object, ...]]] = []
    for offset, event in enumerate(events):
        times = [datetime.fromtimestamp(event[1], UTC)] if event else []
        part = ([f"v{offset}"], [event[0]], [offset], times, times) if event else NOTHING
        parts.append((dice.randrange(4), part))
    columns = [*KEPT, *VISITS]
    merges = sql.SQL(", ").join(sql.SQL("{} as {}").format(one.merge, sql.Identifier(one.name)) for one in columns)
    found = []
    for groups in ("group by side", "group by side % 2", ""):
        dice.shuffle(parts)
        given_parts = sql.SQL(" union all ").join(
            sql.SQL("select {} as side, {}").format(
                sql.Literal(side),
                sql.SQL(", ").join(
                    sql.SQL("{}::{} as {}").format(value, sql.SQL(one.postgres_type), sql.Identifier(one.name))
                    for one, value in zip(columns, part, strict=True)
                ),
            )
            for side, part in parts
        )
        once = sql.SQL("select {} from ({}) parts {}").format(merges, given_parts, sql.SQL(groups))
        found += built.store.connection.execute(sql.SQL("select {} from ({}) m").format(merges, once)).fetchall()
    assert found[0] == found[1] == found[2]
    there = [(event[0].encode(), offset) for offset, event in enumerate(events) if event]
    assert found[0][0] == [f"v{offset}" for _, offset in sorted(there)[:-4:-1]]
    moments = sorted({event[1] for event in events if event})
    begins = [moment for n, moment in enumerate(moments) if n == 0 or moment - moments[n - 1] > 10]
    assert [begin.timestamp() for begin in found[0][3]] == begins
    ends = [moment for moment, after in pairwise([*moments, math.inf]) if after - moment > 10]
    assert [end.timestamp() for end in found[0][4]] == ends


def test_spark_knows_every_zone_that_a_bucket_may_name(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f

    zones = spark.createDataFrame([(zone,) for zone in sorted(_zones())], "zone string")
    moment = f.lit("2024-01-01 00:00:00Z").cast("timestamp")
    local = zones.select(f.from_utc_timestamp(moment, f.col("zone")).alias("local"))
    assert local.where("local is null").count() == 0
