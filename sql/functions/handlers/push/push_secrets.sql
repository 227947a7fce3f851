-- Includes the previous secret while it signs. For operators and drains alone: its reader can sign as the store does.
-- Example: select count(*) from push_secrets('hook')
create or replace function event_store_platform.push_secrets(
  v_view text
)
returns setof text
language plpgsql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.known_view(v_view, 'rows');
  return query
  select s.secret
  from event_store.push_secrets s
  where s.view = v_view and (s.retires_at is null or s.retires_at > event_store_private.clock())
  order by s.retires_at nulls first;
end
$$;

comment on function event_store_platform.push_secrets(text) is
'Returns the secrets that sign pushes of view v_view, the current one first; none if they are not signed. MR010 '
'unknown view; MR012 a bulk view.';
revoke all on function event_store_platform.push_secrets(text) from public;
grant execute on function event_store_platform.push_secrets(text) to event_store_owner;
