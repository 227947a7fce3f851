"""The tables of a backup, which hold the state of the store beside its log: the list of them, and writing them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from millrace.archive.files import BATCH_BYTES, file_checksum, sync_folder, whole_file
from millrace.backup.manifest import STATE, BackedUpTable

SUBJECT_KEYS = "subject_keys"
# table -> the source of its rows, and its columns; each column becomes text, as Postgres writes it
STATE_TABLES: dict[str, tuple[LiteralString, tuple[str, ...]]] = {
    "deciders": (
        "event_store.deciders",
        ("decider", "event", "event_version", "description", "owner", "accepts", "seals", "registered_by"),
    ),
    "event_schemas": (
        "event_store.event_schemas",
        ("decider", "event", "event_version", "schema", "checks", "digest"),
    ),
    "event_upcasts": ("event_store.event_upcasts", ("decider", "event", "to_version", "moves", "digest")),
    "log_marks": ("event_store.log_marks", ("mark_id", "marked_at", "marks", "reason")),
    "purged_streams": (
        "event_store.purged_streams",
        ("decider", "decider_id", "last_event_id", "last_offset", "version", "final"),
    ),
    "views": (
        "event_store.views",
        (
            "view", "start_at", "lock_timeout_s", "pooling_delay_s", "edge_function_url", "created_at", "updated_at", "mode",
            "deciders", "events", "enabled", "max_attempts", "owner",
            "version", "push_format", "push_upcast", "push_unseal", "max_lag_s",
        ),
    ),
    "checkpoints": (
        "event_store.checkpoints",
        (
            "view", "partition", "position", "lease_owner", "lease_token", "leased_until", "leased_from", "leased_to", "rebuilds",
        ),
    ),
    "stream_locks": (
        "event_store.stream_locks",
        (
            "view", "decider", "decider_id", "partition", "last_offset", "last_version", "locked_until", "in_flight",
            "attempts", "last_error", "parked_at", "created_at", "updated_at", "lease_token", "lease_pid", "caught_up",
            "nothing_after", "ahead",
        ),
    ),
    "scheduled_events": (
        "event_store.scheduled_events",
        (
            "decider", "decider_id", "name", "event_id", "event", "event_version", "data", "command_id", "metadata", "final", "due_at",
            "unless_event", "unless_above", "since_version", "opens", "made_by", "made_at", "next_at", "tries", "last_error", "done_at",
            "outcome",
        ),
    ),
    "audit_log": (
        "event_store.audit_log",
        ("audit_id", "done_at", "done_by", "operation", "view", "reason", "detail"),
    ),
    # without a capture's position: its source has moved on, so a restored store reads the tables anew
    "source_generations": (
        "event_store.source_generations",
        ("source_generation", "capture", "system_identifier", "database", "slot", "start_lsn", "began_at"),
    ),
    "quarantined_changes": (
        "event_store.quarantined_changes",
        (
            "quarantine_id", "capture", "source_generation", "commit_lsn", "commit_idx", "xid", "committed_at", "decider",
            "decider_id", "action", "event_id", "command_id", "data", "fault", "raw", "relation", "after_offset", "quarantined_at",
        ),
    ),
    "capture_gaps": (
        "event_store.capture_gaps",
        ("gap_id", "capture", "source_generation", "from_lsn", "to_lsn", "reason", "detected_at", "resolved_by_generation"),
    ),
    "epochs": ("event_store_keys.epochs", ("epoch", "fingerprint", "began_at", "destroyed_at", "confirmed_at")),
    "holders": ("event_store_keys.holders", ("host", "folder", "epochs", "seen_at")),
    SUBJECT_KEYS: (
        "event_store_keys.subject_keys",
        ("key_id", "subject_mac", "epoch", "wrapped", "created_at", "forgotten_at"),
    ),
    "producers": ("event_store.producers", ("producer_id", "partition", "epoch", "registered_at", "owner")),
    "producer_progress": (
        "event_store.producer_progress",
        (
            "producer_id", "partition", "revision", "next_sequence", "received", "duplicates", "refused", "opened", "committed",
            "aborted", "abandoned", "expired", "superseded", "updated_at",
        ),
    ),
    "producer_results": (
        "event_store.producer_results",
        ("producer_id", "partition", "sequence", "outcome", "result", "offsets", "appended", "reason", "transaction_id", "ended_at",
         "digest"),
    ),
    "producer_state": ("event_store.producer_state", ("producer_id", "partition", "key", "value", "sequence")),
}  # fmt: skip
# rows of a read model's view describe its tables, which are not in the backup
_OF_VIEWS = {"views", "checkpoints", "stream_locks"}
# a session of this cluster means nothing in another one
_EXPRESSIONS = {"lease_pid": sql.SQL("case when lease_pid is not null then 0 end")}


def write_state(folder: Path, cursor: Any, left_out: Sequence[str]) -> tuple[BackedUpTable, ...]:  # noqa: ANN401 - ADBC has no types
    """Write the tables, without the rows of the left-out views, into a folder of this backup's own."""
    from adbc_driver_postgresql import StatementOptions

    state = folder / STATE / uuid4().hex
    state.mkdir(parents=True)
    tables = []
    for table, (source, columns) in STATE_TABLES.items():
        texts = sql.SQL(", ").join(
            sql.SQL("({})::text as {}").format(_EXPRESSIONS.get(column, sql.Identifier(column)), sql.Identifier(column))
            for column in columns
        )
        query = sql.SQL("select {} from {}").format(texts, sql.SQL(source))
        if left_out and table in _OF_VIEWS:
            query += sql.SQL(" where view <> all ({}::text[])").format(sql.Literal(list(left_out)))
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
        # without bind parameters, because only then ADBC reads by COPY
        cursor.execute(query.as_string())
        schema = pa.schema([(column, pa.string()) for column in columns])
        path, rows = state / f"{table}.parquet", 0
        with (
            whole_file(path) as sink,
            pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for batch in cursor.fetch_record_batch():
                writer.write_batch(batch.cast(schema))
                rows += len(batch)
        name = str(path.relative_to(folder))
        tables.append(BackedUpTable(table, columns, name, rows, path.stat().st_size, file_checksum(path)))
    sync_folder(state.parent)
    return tuple(tables)
