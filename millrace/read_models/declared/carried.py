"""Keys that an event takes over from the earlier events of its stream.

Such a key follows from the beginning of the stream alone, for any division of events into batches. So nothing is stored
that a commit could forget: if a batch lacks the event that names a stream's key, a task asks the log for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.read_models.declared.columns import ORDER, data_path
from millrace.spark.log_source.reading import HistoryShortened, upcast_data

# from the parameters of a statement to its rows
RunQuery = Callable[[dict[str, Any]], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True)
class Carried:
    """The fields that keys are carried from.

    Attributes:
        fields: By the column to add, the column of events that has the field.
        events: The events that the read model takes; None for all.
        upcasts: How data of older versions of events is read: an option of the source `event_log`.
    """

    fields: Mapping[str, str]
    events: tuple[str, ...] | None
    upcasts: str

    def filled(self, batches: Iterable[pa.Table], run_query: RunQuery) -> Iterator[pa.Table]:
        """Yield events with the last value that each field had in their stream so far; null before the first value.

        Args:
            batches: The events, sorted by stream and offset.
            run_query: Runs `query`.

        Raises:
            HistoryShortened: The log no longer holds all earlier events of a stream, and the others have no value.
        """
        stream: tuple[str, str] | None = None
        values: dict[str, str | None] = {}
        for batch in batches:
            names = zip(batch.column("decider").to_pylist(), batch.column("decider_id").to_pylist(), strict=True)
            streams = [stream, *names]
            begins = {n for n in range(len(batch)) if streams[n] != streams[n + 1]}
            offsets, filled = batch.column(ORDER).to_pylist(), batch
            for column, field in self.fields.items():
                texts = batch.column(field).to_pylist()
                missing = [(*streams[n + 1], offsets[n]) for n in begins if texts[n] is None]  # type: ignore[misc]
                earlier = self._earlier_values(field, missing, run_query)
                found = []
                for n, text in enumerate(texts):
                    if n in begins:
                        values[column] = earlier.get(offsets[n])
                    if text is not None:
                        values[column] = text
                    found.append(values[column])
                filled = filled.append_column(column, pa.array(found, pa.string()))
            stream = streams[-1]
            yield filled

    def _earlier_values(
        self, field: str, missing: list[tuple[str, str, int]], run_query: RunQuery
    ) -> dict[int, str | None]:
        """Return the last value of a field before some events (decider, decider_id, offset), by their offsets."""
        if not missing:
            return {}
        deciders, ids, offsets = (list(each) for each in zip(*missing, strict=True))
        parameters = {"deciders": deciders, "ids": ids, "offsets": offsets}
        path, events = data_path(field), None if self.events is None else [*self.events]
        found = {}
        for offset, value, is_shortened in run_query({**parameters, "path": [*(path or ())], "events": events}):
            if value is None and is_shortened:
                decider, decider_id = next(stream for *stream, at in missing if at == offset)
                raise HistoryShortened(
                    f"{decider} {decider_id!r} lost its first events to a purge, and no later one has {field}:"
                    " a rebuild from the archive goes on"
                )
            found[offset] = value
        return found

    @property
    def query(self) -> str:
        """The query for values: for each event its offset, the value, and whether events were purged."""
        data, joined = (part.as_string().replace("%", "%%") for part in upcast_data(self.upcasts))
        return f"""
            select k.before, c.value, exists (
                select from event_store.purged_streams p
                where p.decider_id = k.decider_id and p.decider = k.decider and p.last_offset < k.before
              )
            from unnest(%(deciders)s::text[], %(ids)s::text[], %(offsets)s::bigint[]) k(decider, decider_id, before)
            -- in the order of the index of streams: most often it ends soon
            left join lateral (
              select {data} #>> %(path)s::text[] as value
              from event_store.events e{joined}
              where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" < k.before
                and (%(events)s::text[] is null or e.event = any (%(events)s::text[]))
                and {data} #>> %(path)s::text[] is not null
              order by e.version desc limit 1
            ) c on true
            """  # noqa: S608 - literals that psycopg wrote
