"""Every call that names a view refuses an unknown view, and a view of the other mode."""

import re

from millrace.errors import MillraceError, UnknownView, WrongMode
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from millrace.read_models.stored.store import ReadModelStore
from millrace.signing import made_secret
from tests.support.factories import refusal, rows


def calls_of(store: PlatformStore, mode: str) -> set[str]:
    """Return the public functions that refuse a view of another mode: those that ask for it, and their callers."""
    query = """
        select proname, prosrc, pronamespace <> 'event_store_private'::regnamespace and prosecdef from pg_proc
        where pronamespace::regnamespace::text ~ '^event_store'
    """
    functions = rows(store.connection, query)
    asking = re.compile(rf"\b(?:known_view|own_view)\(\w+, '{mode}'\)")
    found = {name for name, source, _ in functions if asking.search(source)}
    called = [(name, {*re.findall(r"\bevent_store(?:_private|_platform)?\.(\w+)\(", s)}) for name, s, _ in functions]
    while more := {name for name, those in called if name not in found and those & found}:
        found |= more
    # it skips unwanted events of bulk views, which it looks up itself
    return found & {name for name, _, for_everybody in functions if for_everybody} - {"raise_low_water_mark"}


def test_the_hint_names_every_call_of_each_mode(orders: PlatformStore) -> None:
    orders.register_view("rows")
    orders.register_view("bulk", mode="bulk")
    said = str(refusal(WrongMode, lambda: orders.claim_batch("rows", "me")).hint)
    assert said == refusal(WrongMode, lambda: orders.stream_events("bulk")).hint
    named = {mode: re.findall(r"\w+", calls) for mode, calls in re.findall(r"(rows|bulk): ([^.]+)\.", said)}
    assert {mode: set(calls) for mode, calls in named.items()} == {m: calls_of(orders, m) for m in ("rows", "bulk")}


def test_for_a_read_model_the_hint_names_the_views_of_its_versions(store: PlatformStore) -> None:
    models = ReadModelStore(store.connection)
    models.declare_version("n", 1, "n_first", "one", True, [])
    models.declare_version("n", 2, "n_v2", "two", False, [])
    assert "a version: n_first, n_v2." in str(refusal(UnknownView, lambda: store.enable_view("n")).hint)
    assert "Register it" in str(refusal(UnknownView, lambda: store.enable_view("other")).hint)


# values for arguments without a default
VALUES = {
    "v_decider": "order", "v_decider_id": "00000000-0000-0000-0000-000000000001", "v_error": "no", "v_owner": "me",
    "v_failures": '[{"decider": "order", "decider_id": "a", "error": "no"}]', "v_kind": "RESET_TO_EARLIEST",
    "v_other": "rows", "v_reason": "a test", "v_secret": made_secret(),
}  # fmt: skip
# functions that return nothing for an unknown view, or create it
OF_ANY_VIEW = {
    "audit_log", "detach_consumer", "fail_dispatch", "has_seen", "is_registered", "lease_owners", "purged_discards",
    "register_view", "retried_events", "version_of_view",
}  # fmt: skip


def test_every_call_refuses_a_view_that_is_not_there_or_of_the_other_mode(orders: PlatformStore) -> None:
    orders.register_view("rows")
    orders.register_view("bulk", mode="bulk")
    for_rows, for_bulk = calls_of(orders, "rows"), calls_of(orders, "bulk")
    accepted: set[tuple[str, str]] = set()
    wrong: list[tuple[str, str, MillraceError]] = []
    query = """
        select p.oid::regproc::text, p.proname, p.proargnames[2:p.pronargs - p.pronargdefaults], array(
          select format_type(t.type, null) from unnest(p.proargtypes::oid[]) with ordinality t(type, number)
          where t.number between 2 and p.pronargs - p.pronargdefaults order by t.number
        )
        from pg_proc p
        where p.pronamespace in ('event_store'::regnamespace, 'event_store_platform'::regnamespace)
          and p.proargnames[1] in ('v_view', 'v_view_name')
    """
    for function, name, arguments, types in rows(orders.connection, query):
        stated = [VALUES.get(argument, "1") for argument in arguments]
        stated = [f"{{{each}}}" if kind.endswith("[]") else each for each, kind in zip(stated, types, strict=True)]
        places = ", ".join(["%s", *(f"%s::{kind}" for kind in types)])
        other = {"bulk"} if name in for_rows else {"rows"} if name in for_bulk else set()
        for view in ("unknown", *other):
            expected = WrongMode if view in other else UnknownView
            try:
                with refusals(), orders.connection.transaction(force_rollback=True):
                    orders.connection.execute(f"select {function}({places})".encode(), [view, *stated])
            except expected as error:
                if not error.detail or not error.hint:
                    wrong.append((name, view, error))
            except MillraceError as error:
                wrong.append((name, view, error))
            else:
                accepted.add((name, view))
    assert wrong == []
    assert accepted == {(name, "unknown") for name in OF_ANY_VIEW}
