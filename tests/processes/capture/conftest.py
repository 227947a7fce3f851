"""A captured table."""

from tests.support.capturing.captured import captured, new_source

__all__ = ["captured", "new_source"]
