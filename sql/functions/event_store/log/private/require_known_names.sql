-- So a caller can tell a typing error from a kind that has no events yet.
create or replace function event_store_private.require_known_names(
  v_decider text,
  v_event text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _known text;
begin
  if exists (
    select from event_store.deciders d
    where (v_decider is null or d.decider = v_decider) and (v_event is null or d.event = v_event)
  ) or (v_decider is null and v_event is null) then
    return;
  end if;
  if not exists (select from event_store.deciders d where d.decider = v_decider) and v_decider is not null then
    select string_agg(n.name, ', ' order by n.name) into _known
    from (select distinct d.decider as name from event_store.deciders d order by 1 limit 50) n;
    raise exception 'decider is not registered'
      using
        errcode = 'MR004',
        detail = format('decider %L', v_decider),
        hint = format('Registered are: %s.', coalesce(_known, 'none'));
  end if;
  select string_agg(n.name, ', ' order by n.name) into _known
  from (
    select distinct d.event as name from event_store.deciders d where v_decider is null or d.decider = v_decider order by 1 limit 50
  ) n;
  raise exception 'event is not registered'
    using
      errcode = 'MR004',
      detail = format('event %L', v_event) || coalesce(format(' of decider %L', v_decider), ''),
      hint = format('Registered are: %s.', coalesce(_known, 'none'));
end
$$;

comment on function event_store_private.require_known_names(text, text) is
'Refuses a decider or the name of an event that is not registered, and names those that are: MR004. Null is not checked.';
