"""The levels of isolation, for all tests here."""

from tests.support.views.isolation import level, racing

__all__ = ["level", "racing"]
