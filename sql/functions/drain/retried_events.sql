-- For each stream that the lease retries: the events after the acknowledged ones, up to the last one delivered.
-- One definition for read_batch and for Spark's source event_log. Postgres inlines it, so it has no search_path and no
-- rights of its own: the caller needs the right to read the tables.
-- Example: select position, event, decider_id from retried_events('invoices', 3, 17, 1000) order by "offset"
create or replace function event_store_platform.retried_events(
  v_view text,
  v_partition int,
  v_lease_token bigint,
  v_to_position bigint
)
returns setof event_store.log_event
language sql
stable
as $$
  select
    l.position, e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final,
    e.created_at, e."offset", e.version, e.metadata
  from event_store.stream_locks k
  join event_store.events e
    on e.decider_id = k.decider_id and e.decider = k.decider
      and e.version > k.last_version and e."offset" > k.last_offset
      and e.version <= (select x.version from event_store.events x where x."offset" = k.in_flight)
  join event_store.event_log l on l."offset" = e."offset"
  where k.view = v_view
    and k.partition = v_partition
    and k.lease_token = v_lease_token
    and k.in_flight is not null and k.lease_pid is null
    and l.position < v_to_position
$$;

comment on function event_store_platform.retried_events(text, int, bigint, bigint) is
'Returns the events that the lease v_lease_token of log partition v_partition retries, in no order, below '
'v_to_position, the end of the leased range: the pending ones of streams with a lock that are due for a retry. It '
'ignores the filter of view v_view and does not report a lost lease; read_batch does both.';
revoke all on function event_store_platform.retried_events(text, int, bigint, bigint) from public;
grant execute on function event_store_platform.retried_events(text, int, bigint, bigint)
to event_store_reader, event_store_owner;
