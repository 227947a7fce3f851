"""Two captured tables, of which something happens to the first; the second, `good`, is captured all the while."""

from millrace.resources.capture.declaration import CapturedTable
from tests.support.capturing.captured import Captured, declared

GOOD = CapturedTable("good")
FILL = "insert into items values (1, 'goes'), (2, 'stays'), (3, 'changes')"


def both(captured: Captured, *tables: CapturedTable) -> Captured:
    """Return the source with a second table, and both declared."""
    captured.source.run(
        "create table good (id int primary key, name text)", "insert into good values (1, 'first')", FILL
    )
    return declared(captured, CapturedTable("items"), GOOD, *tables)
