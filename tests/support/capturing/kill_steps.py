"""The steps of a capture before or after which tests kill it: the only list of them."""

from typing import NamedTuple

from millrace.capture import backfill, prepare, setup
from millrace.capture.backfill import Backfill
from millrace.capture.drain import CaptureDrain
from millrace.capture.schema_changes import SchemaStore
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore


class Step(NamedTuple):
    """A call of a function, and whether the process is killed after its return instead of before it."""

    place: object
    name: str
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.name}"


def around(place: object, name: str) -> tuple[Step, Step]:
    return Step(place, name), Step(place, name, after=True)


# `after store_changes`: everything is done except the commit
STORING = (
    *around(CaptureStore, "copy_changes"),
    *around(CaptureStore, "store_changes"),
    *around(SlotStream, "advance"),
)
EMITTING = around(CaptureStore, "emit_changes")
REPLAYING = around(CaptureStore, "compare_changes")
SCHEMAS = around(SchemaStore, "keep_schemas")
PURGING = (Step(CaptureDrain, "purge"),)
REFRESHING = (Step(Backfill, "refresh"),)
READING = (
    Step(backfill, "read_chunk", after=True),
    *around(CaptureStore, "emit_backfill"),
    *around(CaptureStore, "finish_backfill"),
)
# the captured tables are published on the source, and then recorded in the store
PUBLISHING = (*around(setup, "ensure_publication"), Step(setup, "next_xid"))
PUBLISHED = around(CaptureStore, "publish_tables")
SKIPPING = around(setup, "advance")
PROBED = (Step(prepare, "mark_probed"), Step(prepare, "next_xid"))
BEGINNING = (Step(setup, "drop_slot"), Step(setup, "create_slot"), *around(CaptureStore, "begin_generation"))
REMOVING = (Step(prepare, "drop_slot"), Step(prepare, "drop_publication"))
LOSING = around(CaptureStore, "record_gap")
REQUEUEING = (*around(CaptureStore, "repair_change"), *around(CaptureStore, "requeue_changes"))
VERIFYING = (
    *around(CaptureStore, "begin_verification"),
    *around(CaptureStore, "verify_rows"),
    *around(CaptureStore, "end_verification"),
)
# the steps that any run may take
OF_RUNS = (*STORING, *EMITTING, *REPLAYING, *SCHEMAS, *REFRESHING, *READING, *PUBLISHED, *PURGING)
