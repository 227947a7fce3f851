"""A store of things, and a second session."""

from tests.support.building.drains import observer, things

__all__ = ["observer", "things"]
