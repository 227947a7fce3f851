"""Fixtures that these tests share."""

from tests.support.customers import people

__all__ = ["people"]
