"""Two captured tables, of which something happens to the first; the second, `good`, is captured all the while."""

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.health import capture_health
from millrace.resources.capture.store import CaptureInfo, CaptureStore
from tests.support.capturing.captured import Captured, declared

GOOD = CapturedTable("good")
FILL = "insert into items values (1, 'goes'), (2, 'stays'), (3, 'changes')"


def both(captured: Captured, *tables: CapturedTable) -> Captured:
    captured.source.run("create table good (id int primary key, name text)", "insert into good values (1, '1st')", FILL)
    return declared(captured, CapturedTable("items"), GOOD, *tables)


def info(captured: Captured) -> CaptureInfo:
    (found,) = CaptureStore(captured.store).capture_info("shop")
    return found


def problems(captured: Captured) -> list[str]:
    return capture_health(captured.dsn, captured.capture).problems(captured.capture)
