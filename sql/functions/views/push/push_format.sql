-- In which form events of a view are pushed: json or cloudevents. Only for those who may use the view.
-- Example: select push_format('hook')
create or replace function event_store_platform.push_format(
  v_view text
)
returns text
language plpgsql
volatile -- as own_view is
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.own_view(v_view, 'rows');
  return (select push_format from event_store.views where view = v_view);
end
$$;

comment on function event_store_platform.push_format(text) is
'Returns in which form events of view v_view are pushed: json or cloudevents. MR010 unknown view; MR012 a bulk view; '
'MR041 it is another role''s.';
revoke all on function event_store_platform.push_format(text) from public;
grant execute on function event_store_platform.push_format(text) to event_store_consumer, event_store_owner;
