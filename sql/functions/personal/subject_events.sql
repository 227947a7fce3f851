-- It reads all events that were not purged.
-- Example: select * from subject_events(mac)
create or replace function event_store_platform.subject_events(
  v_subject_mac bytea
)
returns table (
  key_id text,
  epoch int,
  created_at timestamptz,
  forgotten_at timestamptz,
  decider text,
  event text,
  events bigint
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select k.key_id, k.epoch, k.created_at, k.forgotten_at, e.decider, e.event, count(e.event)
  from event_store_keys.subject_keys k
  left join event_store.events e on strpos(e.data::text, format('"$sealed": "1.%s.', k.key_id)) > 0
  where k.subject_mac = v_subject_mac
  group by k.key_id, e.decider, e.event
  order by e.decider, e.event
$$;

comment on function event_store_platform.subject_events(bytea) is
'Returns the key of a subject, and how many events of each kind have something that it sealed. No row without a key.';
revoke all on function event_store_platform.subject_events(bytea) from public;
grant execute on function event_store_platform.subject_events(bytea) to event_store_owner;
