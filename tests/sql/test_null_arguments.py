"""Null says one thing: as if left out where the default is null, refused elsewhere; a look-up of null finds nothing."""

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from tests.support.factories import rows

LOOK_UPS = {
    "capture_gaps", "captured_tables", "first_dead_letter", "get_events", "get_last_event", "get_producer_state", "is_registered", "is_sequenced",
    "is_unused_version", "lease_owners", "log_position", "model_versions", "offsets_for_timestamp", "purged_discards",
    "release_owner", "owned_leases", "locked_streams", "attached_views",
    "quarantined_changes", "read_stream", "retried_events", "stream_head", "stream_partition", "stream_state", "version_of_view",
}  # fmt: skip


def functions(store: EventStore) -> list[tuple[str, list[str]]]:
    """Return the functions with the types of the arguments that have no default."""
    return [
        (name, types)
        for name, types in rows(
            store.connection,
            """
            select p.proname, array(
              select format_type(t.type, null) from unnest(p.proargtypes::oid[]) with ordinality t(type, number)
              where t.number <= p.pronargs - p.pronargdefaults order by t.number
            )
            from pg_proc p
            where p.pronamespace = 'event_store'::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
            """,
        )
        if types
    ]


def test_null_for_what_has_no_default_is_refused_or_finds_nothing(orders: EventStore) -> None:
    accepted, odd = set(), []
    for name, types in functions(orders):
        call = f"select * from event_store.{name}({', '.join(f'null::{kind}' for kind in types)})"
        try:
            with orders.connection.transaction(force_rollback=True):
                found = orders.connection.execute(call.encode()).fetchall()
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("MR"):
                odd.append(f"{name}: {error}")
        else:
            accepted.add(name)
            assert name == "is_sequenced" or found in ([], [(None,)], [(False,)], [(0,)]), name
    assert odd == []
    assert accepted == LOOK_UPS


@pytest.mark.parametrize(
    "name", ["dead_letters", "view_info", "audit_log", "available_offset_range", "producer_statistics"]
)
def test_null_for_what_may_be_left_out_is_as_if_left_out(orders: EventStore, name: str) -> None:
    orders.register_view("v", "-infinity")
    left_out = rows(orders.connection, f"select * from event_store.{name}()".encode())  # type: ignore[arg-type]
    assert rows(orders.connection, f"select * from event_store.{name}(null)".encode()) == left_out  # type: ignore[arg-type]


def test_a_duration_is_a_bigint_of_seconds_whose_name_ends_in_s(orders: EventStore) -> None:
    """Only fstore-sql's schedule_nack_event takes milliseconds."""
    found = rows(
        orders.connection,
        """
        select p.proname, a.name, format_type(a.type, null)
        from pg_proc p, unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) a(name, type)
        where p.pronamespace = 'event_store'::regnamespace
          and (a.name ~ 'second|_ms$|minute|_s$|timeout|duration' or a.type = 'interval'::regtype)
        """,
    )
    assert {name for _, name, _ in found if not name.endswith("_s")} == {"v_milliseconds"}
    assert {kind for _, _, kind in found} == {"bigint"}
