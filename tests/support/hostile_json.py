"""JSON that Postgres accepts, and that its readers may stumble over."""

import json
from uuid import UUID, uuid4

from hypothesis import strategies as st
from psycopg import sql

from millrace.event_store.platform import PlatformStore
from tests.support.sql_calls import append_event

# refused by Python's parser: a number of more than 4,300 digits, more levels than its recursion limit
UNREADABLE = {
    "digits": '{"amount": 1e5000}',
    "negative digits": '[-1e100000, {"n": 1}]',
    "arrays": "[" * 5000 + "]" * 5000,
    "objects": '{"a": ' * 4000 + "1" + "}" * 4000,
}
# numbers that no float prints: too large, too small, too long, exact
NUMBERS = (
    "0", "-0", "0.10", "1.50", "1E400", "-1e400", "1e5000", "-1e20000", "1e-400", "1e-16000", "9007199254740993",
    "9223372036854775808", "3.00000000000000000000000000000000000001", "7" * 4301, f"1{'0' * 400}.5",
)  # fmt: skip
# texts that look like errors, types and keys of our own and other programs
WORDS = (
    "", " ", "event_log: ", "No space left on device", "psycopg.OperationalError: the connection is lost",
    "Traceback (most recent call last):\n  File x\nmillrace.spark.log_source.log.Unreadable: event_log: x",
    "__proto__", "constructor", "294276-12-31T23:59:59Z", "294277-01-01", "-infinity", "infinity", "NaN", "0000-00-00",
    "2024-02-30", "1e400", "true", "null", "\\u0000", "\\N", "\\.", "\t\r\n", "\u2028\u2029", "\ufeff", "\x7f\x1b[2J",
    "%s %(x)s", "{}", "'; drop table event_store.events; --", "$$", "`", "e\u0301", "\U0001f600", "k" * 63, "k" * 64, "é" * 40,
    "k" * 1000, 'q"uote', "back\\slash", "with.dot", "data.a", "0", "-1", "offset", "c0",
)  # fmt: skip
DEPTHS = (1, 63, 64, 900, 2000, 5000)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(texts, inner), max_size=4)
    return st.one_of(
        members.map(lambda each: "{" + ", ".join(f"{key}: {value}" for key, value in each) + "}"),
        st.lists(inner, max_size=4).map(lambda each: f"[{', '.join(each)}]"),
        st.tuples(inner, st.sampled_from(DEPTHS)).map(lambda each: "[" * each[1] + each[0] + "]" * each[1]),
        st.tuples(inner, st.sampled_from(DEPTHS)).map(lambda each: '{"a": ' * each[1] + each[0] + "}" * each[1]),
    )


# no NUL, and no half of a surrogate pair: Postgres takes neither
_any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
texts = (st.sampled_from(WORDS) | _any_text).flatmap(
    lambda text: st.booleans().map(lambda plain: json.dumps(text, ensure_ascii=plain))
)
scalars = st.one_of(st.sampled_from(NUMBERS), texts, st.sampled_from(("true", "false")))
documents = st.one_of(scalars, _nested(scalars), _nested(st.recursive(scalars, _nested, max_leaves=4))).filter(
    lambda text: len(text) < 200_000
)


def append_text(
    store: PlatformStore,
    decider_id: str,
    data: str,
    previous_id: UUID | None = None,
    *,
    event: str = "placed",
    decider: str = "order",
) -> None:
    """Append an event with a JSON text as its data to the end of its stream; Python may be unable to read the text.

    It bypasses every limit of the store: readers of events must cope by themselves.
    """
    stored = append_event(store, event, uuid4(), decider, decider_id, {}, uuid4(), previous_id)
    change_behind_the_stores_back(store, stored.offset, data)


def change_behind_the_stores_back(store: PlatformStore, offset: int, data: str) -> None:
    """Change the data of an event, which the store never does, and bypass its limits."""
    connection = store.connection
    limits = "select conname from pg_constraint where conrelid = 'event_store.events'::regclass and contype = 'c'"
    for (limit,) in connection.execute(limits).fetchall():
        connection.execute(sql.SQL("alter table event_store.events drop constraint {}").format(sql.Identifier(limit)))
    connection.execute("alter table event_store.events disable trigger user")
    connection.execute('update event_store.events set data = %s where "offset" = %s', (data, offset))
    connection.execute("alter table event_store.events enable trigger user")
