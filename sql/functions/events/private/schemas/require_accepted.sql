-- Refuses data that do not fit the schema of their event. An event that is stored already is not asked about.
create or replace function event_store_private.require_accepted(
  v_decider text,
  v_event text,
  v_event_version bigint,
  v_data jsonb
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  if exists (
    select from event_store.deciders d
    where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
      and d.accepts is not null and (v_data @@ d.accepts) is not true
  ) then
    perform event_store_private.refuse_data(v_decider, v_event, v_event_version, v_data);
  end if;
end
$$;

comment on function event_store_private.require_accepted(text, text, bigint, jsonb) is
'Refuses data that do not fit the schema of their event: MR050.';
