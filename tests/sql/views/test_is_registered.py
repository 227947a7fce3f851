"""Whether a view is there."""

from millrace.resources.event_store import EventStore


def test_a_view_is_registered_until_it_is_removed(store: EventStore) -> None:
    assert not store.is_registered("v")
    store.register_view("v")
    assert store.is_registered("v")
    store.unregister_view("v")
    assert not store.is_registered("v")
