-- Only the archive has such an event: if it fails again, it cannot be retried later, so it stays discarded. A version
-- after the first is consumed as the view with _v and its number behind.
create or replace function event_store_platform.purged_discards(
  v_view text
)
returns setof bigint
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select (a.detail ->> 'offset')::bigint
  from event_store.audit_log a
  where a.operation = 'discard_dead_letter'
    and v_view in (a.view, regexp_replace(a.view, '_v[0-9]+$', ''))
    and a.detail ->> 'offset' is not null
    and not exists (select from event_store.event_log l where l."offset" = (a.detail ->> 'offset')::bigint)
$$;

comment on function event_store_platform.purged_discards(text) is
'Returns the offsets of events that were discarded (discard_dead_letter) for any version of the read model that '
'declares view v_view, and purged since.';
revoke all on function event_store_platform.purged_discards(text) from public;
grant execute on function event_store_platform.purged_discards(text) to event_store_reader, event_store_owner;
