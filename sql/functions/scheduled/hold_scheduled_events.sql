-- Example: select hold_scheduled_events(null, 'this copy is the store now')
create or replace function event_store_platform.hold_scheduled_events(
  v_until timestamptz default null,
  v_reason text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  update event_store.schedule s
  set
    held_until = coalesce(v_until, '-infinity'), held_because = case when v_until is not null then v_reason end,
    cluster = (select c.system_identifier from pg_control_system() c),
    database = (select d.oid from pg_database d where d.datname = current_database());
  perform event_store_private.audit('hold_scheduled_events', null, v_reason, jsonb_build_object('until', v_until));
end
$$;

comment on function event_store_platform.hold_scheduled_events(timestamptz, text) is
'Lets no scheduled event be appended until v_until; null lets them be appended, also in a copy of the database. What became '
'due meanwhile follows at once. Audited with v_reason.';
revoke all on function event_store_platform.hold_scheduled_events(timestamptz, text) from public;
grant execute on function event_store_platform.hold_scheduled_events(timestamptz, text) to event_store_owner;
