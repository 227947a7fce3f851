"""Refused declarations of columns, and a sum that outgrows its type."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal, localcontext
from hashlib import sha256
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from millrace.drain.commit import Work
from millrace.drain.limits import DEFAULTS
from millrace.drain.staged import StagedBuilds
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared import words
from millrace.read_models.declared.column_types import InvalidColumn
from millrace.read_models.declared.columns import Column, KeyColumn
from millrace.read_models.declared.computed import Computed, computed
from millrace.read_models.declared.declaration import lookup, read_model
from millrace.read_models.declared.lookups import Lookup
from millrace.read_models.declared.words import all_, any_, avg, bucket, carried, count, field, sum_
from millrace.read_models.stored.merge import (
    Replaced,
    StagedRows,
    StagedRowsLost,
    merge_batch,
    merge_rows,
    next_batch,
    replace_partition,
    try_replacing,
)
from millrace.read_models.stored.versions import ensure_version
from tests.support.building.drains import Everything, thing
from tests.support.building.lab import Lab
from tests.support.building.read_models import uses
from tests.support.factories import ids_of_one_partition, rows
from tests.support.sql_calls import append_events

REFUSED: list[tuple[Callable[[], Column | KeyColumn | Computed | Lookup], str]] = [
    (lambda: computed("closed_at -"), "computed('closed_at -') is no expression: invalid syntax"),
    (lambda: computed("a = 1"), "is no expression"),
    (lambda: computed("a; drop table b"), "is no expression: invalid syntax (<unknown>, line 1); allowed: + - * / of"),
    (lambda: computed("a" * 1_001), "write a text of at most 1000 characters"),
    (lambda: computed(cast("Any", 5)), "computed(5): write a text"),
    (lambda: lookup(cast("Any", "customers"), on="a", column="b"), "lookup('customers'): name a read model, imported"),
    (lambda: lookup(Everything, on="a", column="b"), "lookup(everything): it has no column 'b'; it has thing_id, events"),
    (lambda: lookup(uses, on="a", column="b"), "lookup(uses): its key is thing_id, text; look up read models whose key is"),
    (lambda: words.first("amount"), "'amount' is neither a column of the event (partition, "),
    (lambda: count("data."), "'data.' is neither a column of the event"),
    (lambda: count("data.a..b"), "nor a field data.<key>[.<key>…]"),
    (lambda: sum_("data.n", type="double"), "sums are bigint or decimal(p,s), which add up exactly"),
    (lambda: sum_("data.n", type="int"), "sums are bigint or decimal(p,s)"),
    (lambda: avg("data.n", type="double"), "sums are bigint or decimal(p,s)"),
    (lambda: sum_("created_at"), "'created_at' has type timestamp, not bigint"),
    (lambda: sum_("data.n", type="decimal"), "type is 'decimal'; allowed: bigint, boolean, date"),
    (lambda: sum_("data.n", type="decimal(18,2"), "type is 'decimal(18,2'; allowed"),
    (lambda: sum_("data.n", type="decimal(39,2)"), "type is 'decimal(39,2)'; allowed"),
    (lambda: avg("data.n", type="decimal(29,2)"), "avg('data.n'): type is 'decimal(29,2)'; what is added up has at most 28"),
    (lambda: sum_("data.n", type="decimal(2,3)"), "type is 'decimal(2,3)'; allowed"),
    (lambda: sum_("data.n", type="decimal(0,0)"), "type is 'decimal(0,0)'; allowed"),
    (lambda: sum_("data.n", type="decimal(²,2)"), "allowed"),
    (lambda: words.last("data.n", type="float"), "type is 'float'; allowed"),
    (lambda: words.last("event", type="int"), "'event' has type string, not int"),
    (lambda: words.min_("data.n", type="boolean"), "a boolean has no order; use any_ and all_"),
    (lambda: words.max_("final"), "a boolean has no order; use any_ and all_"),
    (lambda: words.max_("data.km"), "'data.km': type= is missing. A field of data is text, and of texts '9' is more than '10'"),
    (lambda: words.min_("item.km"), "such as type='decimal(18,2)'; type='string' compares bytes"),
    (lambda: words.top("data.km", 3), "'data.km': type= is missing"),
    (lambda: words.top("event", 3, by="data.km"), "'data.km': by_type= is missing"),
    (lambda: words.first("event", by="data.km"), "'data.km': by_type= is missing"),
    (lambda: words.last("event", by="item"), "'item': by_type= is missing"),
    (lambda: count(where=cast("Any", "data.n > 5")), "where= is 'data.n > 5': name sources and what they are to be"),
    (lambda: count(where={}), "where= is {}: name sources"),
    (lambda: count(where={"amount": 5}), "'amount' is neither a column of the event"),
    (lambda: count(where={"data.n": {}}), "where= is {'data.n': {}}; allowed: a text, a number, True, False, a datetime"),
    (lambda: count(where={"data.n": []}), "where= of 'data.n' is []; allowed: a text"),
    (lambda: count(where={"data.n": {"=>": 5}}), "where= of 'data.n' is {'=>': 5}; allowed"),
    (lambda: count(where={"data.n": {"<": [1, 2]}}), "where= of 'data.n' is {'<': [1, 2]}; allowed"),
    (lambda: count(where={"data.n": {"<": None}}), "where= of 'data.n' is {'<': None}; allowed"),
    (lambda: count(where={"data.n": {">=": True}}), "where= of 'data.n' is {'>=': True}; allowed"),
    (lambda: count(where={"data.n": math.nan}), "where= of 'data.n' has nan; allowed"),
    (lambda: count(where={"data.n": {1, b"1"}}), "where= of 'data.n' has b'1'; allowed"),
    (lambda: count(where={"data.at": datetime(2024, 1, 1)}), "a datetime with its zone, None for missing or null"),
    (
        lambda: count(where={"data.at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}),
        "where= of 'data.at' has a time outside the years 1 to 9999 in UTC",
    ),
    (lambda: count(where={"data.n": 10**5000}), "or a number that no double holds; allowed"),
    (lambda: count(where={"created_at": "2024-01-01"}), "has '2024-01-01', and 'created_at' is of type timestamp"),
    (lambda: count(where={"event": 5}), "where= of 'event' has Decimal('5'), and 'event' is of type string"),
    (lambda: words.set_union("data.n", type="double"), "type is 'double', which 0 and -0 are two of; use decimal(p,s)"),
    (lambda: words.set_union("data.n", type="text"), "type is 'text'; allowed"),
    (lambda: any_("event"), "'event' has type string, not boolean"),
    (lambda: all_("offset"), "'offset' has type bigint, not boolean"),
    (lambda: count(events=[]), "events= is []: name at least one event in a list"),
    (lambda: count(events=cast("Any", "made")), "events= is 'made': name at least one event in a list"),
    (lambda: field("data.n", type="number"), "type is 'number'; allowed"),
    (lambda: field("item."), "'item.' is neither a column of the event"),
    (lambda: sum_("items.n"), "'items.n' is neither a column of the event"),
    (lambda: field({"a": "item.at", "b": "created_at"}, type="timestamp"), "its sources are of several types"),
    (lambda: carried("decider_id"), "carried('decider_id'): name a field data.<key>[.<key>…]; every event has its"),
    (lambda: carried("item.sku"), "carried('item.sku'): name a field data.<key>"),
    (lambda: carried(cast("Any", {"a": "data.n"})), "carried({'a': 'data.n'}): name a field data.<key>"),
    (lambda: carried("data."), "'data.' is neither a column of the event"),
    (lambda: carried("data.n", type="text"), "type is 'text'; allowed"),
    (lambda: field({}), "field({}): name a source for each decider of the model"),
    (lambda: field({"a": "data.n", "b": "n"}), "'n' is neither a column of the event"),
    (lambda: field({"a": "offset", "b": "decider_id"}), "of several types; name fields of data, or columns of one type"),
    (lambda: field({"a": "data.at", "b": "created_at"}, type="timestamp"), "its sources are of several types"),
    (lambda: bucket("data.at", every="1 fortnight"), "every is '1 fortnight'; allowed: '1 day', '1 week' (from Monday"),
    (lambda: bucket("data.at", every="2 day"), "bucket('data.at'): every is '2 day'; allowed"),
    (lambda: bucket("data.at", every=cast("Any", 15)), "bucket('data.at'): every is 15; allowed"),
    (lambda: bucket("data.at", every="7 hour"), "'n hour' where n divides 24"),
    (lambda: bucket("data.at", every="1 day", zone="CET"), "there is no zone 'CET'; name a city's"),
    (lambda: bucket("event", every="1 day"), "'event' has type string, not timestamp"),
    (lambda: words.latest("data.n", 0), "'data.n': n is 0; keep 1 to 1000 values"),
    (lambda: words.top("data.n", 1_001), "n is 1001; keep 1 to 1000 values"),
    (lambda: words.top("data.n", cast("Any", "3")), "n is '3'; keep"),
    (lambda: words.top("data.n", 3, by="at"), "'at' is neither a column of the event"),
    (lambda: words.top("data.n", 3, type="boolean"), "a boolean has no order"),
    (lambda: words.top("data.n", 3, by_type="int"), "by_type is 'int', the type of by=, which is left out"),
    (lambda: words.sessions("data.at", gap="half an hour"), "gap is 'half an hour'; allowed: 'n sec', 'n min', 'n hour', 'n day'"),
    (lambda: words.sessions("data.at", gap=cast("Any", None)), "gap is None; allowed"),
    (lambda: words.sessions("data.at", gap="100000 sec"), "gap is '100000 sec'; allowed: 'n sec', 'n min', 'n hour', 'n day', n b"),
    (lambda: words.sessions("event", gap="1 min"), "'event' has type string, not timestamp"),
    (lambda: words.first("nothing"), "; over rows, a rollup has count, sum_ and avg"),
    (lambda: words.last("data.n", by="at"), "'at' is neither a column of the event"),
    (lambda: words.last("data.n", by="data.good", by_type="boolean"), "a boolean has no order"),
    (lambda: words.first("data.n", by="data.at", by_type="time"), "type is 'time'; allowed"),
    (lambda: words.first("data.n", by_type="int"), "by_type is 'int', the type of by=, which is left out"),
]  # fmt: skip


def test_a_length_of_time_may_be_written_as_sql_and_options_do() -> None:
    lengths = {"1 minute": "1 min", "15 minutes": "15 min", "15m": "15 min", "1h": "1 hour", "6 hours": "6 hour"}
    for said, same in (lengths | {"1d": "1 day", "1w": "1 week", "1 months": "1 month"}).items():
        assert bucket("data.at", every=said) == bucket("data.at", every=same)
    for said, same in (lengths | {"30s": "30 sec", "1 second": "1 sec", "2 days": "2 day"}).items():
        assert words.sessions("data.at", gap=said) == words.sessions("data.at", gap=same)


def test_a_column_that_cannot_work_is_refused_in_a_sentence() -> None:
    wrong = []
    for declare, sentence in REFUSED:
        with pytest.raises(InvalidColumn) as refused:
            declare()
        if sentence not in str(refused.value):
            wrong.append((sentence, str(refused.value)))
    assert wrong == []


# a column over its own field, and the largest value of its type
LARGE = {
    "a": (sum_("data.a"), "9223372036854775807"),
    "b": (sum_("data.b", type="decimal(28,2)"), "99999999999999999999999999.99"),
    "c": (avg("data.c", type="decimal(28,26)"), "99.99999999999999999999999999"),
}


def test_no_sum_outgrows_its_type_in_a_batch_or_in_the_merge(lab: Lab) -> None:
    members = {f"total_{name}": column for name, (column, _) in LARGE.items()}
    declared = type("Grown", (), {"__doc__": "One row per thing.", "thing_id": words.stream_id()} | members)
    model = read_model(view="grown", key=["thing_id"])(declared)
    (one,) = ids_of_one_partition(lab.connection, 1, partition=3)
    largest = {name: value for name, (_, value) in LARGE.items()}
    signed = [largest, largest, {name: f"-{value}" for name, value in largest.items()}]
    append_events(lab, (thing(one, **values) for values in (*signed, *signed, largest)))
    ensure_version(lab.connection, model)
    (lease,) = lab.claim_batch("grown", "test", 1_000, 600)
    for half in (replace(lease, to_position=5), replace(lease, from_position=5)):
        batch = next_batch(lab.connection)
        staged, _ = StagedBuilds(lab.dsn, lab.session, "test", 600, DEFAULTS).stage(Work(model, (half,)), batch)
        merge_batch(lab.connection, model, batch, staged)
    ((a, b, c),) = lab.rows("select total_a, total_b, total_c_sum from read_models.grown_state")
    with localcontext(prec=40):
        assert [a, b, c] == [3 * Decimal(value) for value in largest.values()]


@pytest.mark.parametrize("bytes_", [6_400, 32_000])
def test_a_key_that_is_too_long_for_its_index_names_its_columns(things: PlatformStore, bytes_: int) -> None:
    members = {"who": field("data.a"), "n": field("data.n", type="int"), "events": count()}
    declared = type("Long", (), {"__doc__": "One row.", **members})
    model = read_model(view="long", key=["who", "n"])(declared)
    ensure_version(things.connection, model)
    batch = next_batch(things.connection)
    # digits that Postgres does not compress below the limit
    digits = "".join(sha256(str(number).encode()).hexdigest() for number in range(bytes_ // 64))
    things.connection.execute("insert into read_models.long_staging values (3, %s, 1, 1, %s, 1)", (digits, batch))
    staged = [StagedRows(1, 1)]
    fresh = pa.table({"partition": [3], "who": [digits], "n": [1], "events": [1]})
    merges: list[Callable[[], object]] = [
        lambda: merge_batch(things.connection, model, batch, staged),
        lambda: merge_rows(things.connection, model, fresh),
        lambda: replace_partition(things.connection, model, 3, batch, staged),
        lambda: try_replacing(things.connection, model, batch, staged),
    ]
    for merge in merges:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="a key is too long: who of read model long"):
            merge()


def test_a_rebuild_merges_rows_of_a_key_that_was_staged_twice(things: PlatformStore) -> None:
    model = read_model(view="twice", key=["who"])(
        type(
            "Twice",
            (),
            {"__doc__": "One row.", "who": field("data.a"), "events": count(), "texts": words.set_union("event")},
        )
    )
    ensure_version(things.connection, model)
    batch = next_batch(things.connection)
    staged = "insert into read_models.twice_staging values (3, %s, %s, %s, %s, %s)"
    for attempt, who, texts in (1, "a", ["x"]), (1, "b", ["x", "y"]), (2, "b", ["w", "y"]):
        things.connection.execute(staged, (who, attempt, texts, batch, attempt))
    replaced = replace_partition(things.connection, model, 3, batch, [StagedRows(1, 2), StagedRows(2, 1)])
    assert replaced == Replaced(rows=2, gone=0, new=2, changed=0)
    found = rows(things.connection, "select * from read_models.twice order by who")
    assert found == [("a", 1, ["x"]), ("b", 3, ["w", "x", "y"])]
    # as after a server crash behind a pooler, which may keep the connection open: stored rows stay
    things.connection.execute("truncate read_models.twice_staging")
    with pytest.raises(StagedRowsLost):
        replace_partition(things.connection, model, 3, batch, [StagedRows(1, 2), StagedRows(2, 1)])
    assert len(rows(things.connection, "select from read_models.twice")) == 2
