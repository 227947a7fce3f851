"""A store of things with and without Spark, and another session, for all tests here."""

from tests.support.building.drains import observer, things
from tests.support.building.lab import lab

__all__ = ["lab", "observer", "things"]
