"""A store of things, with and without Spark, for all tests here."""

from tests.support.building.drains import things
from tests.support.building.lab import lab

__all__ = ["lab", "things"]
