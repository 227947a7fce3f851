-- Example: select model, version from version_of_view('orders')
create or replace function event_store_platform.version_of_view(
  v_view text
)
returns table (
  model text,
  version int
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select d.model, d.version from read_models.declarations d where d.view = v_view
$$;

comment on function event_store_platform.version_of_view(text) is
'Returns the read model and the version that are consumed as view v_view; none if no read model is.';
revoke all on function event_store_platform.version_of_view(text) from public;
grant execute on function event_store_platform.version_of_view(text) to event_store_reader, event_store_owner;
