"""What tests of incidents share."""

import pytest

from tests.sql.alerts.watched import Watched
from tests.support.factories import Connect


@pytest.fixture
def watched(connect: Connect) -> Watched:
    return Watched(connect())
