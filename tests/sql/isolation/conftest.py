"""Sessions in the stricter isolation levels, for all tests here."""

from tests.support.views.isolation import any_racer, any_snapshot, racer, snapshot

__all__ = ["any_racer", "any_snapshot", "racer", "snapshot"]
