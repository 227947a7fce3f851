"""Sources and their captures, for all tests here."""

from hypothesis import settings

from tests.support.capturing.captured import captured
from tests.support.capturing.sources import new_source, source
from tests.support.capturing.two_tables import as_role

__all__ = ["as_role", "captured", "new_source", "source"]

# a busy machine fails no example of a property
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
