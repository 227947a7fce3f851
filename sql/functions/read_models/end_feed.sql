-- Example: select end_feed('orders')
create or replace function event_store_platform.end_feed(
  v_model text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_model is null then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  update read_models.feeds f set tells = false where f.model = v_model and f.tells;
end
$$;

comment on function event_store_platform.end_feed(text) is
'Lets read model v_model tell no more changes: its declaration has no feed. A feed that is declared again begins with `replaced`. MR005 v_model is null.';
revoke all on function event_store_platform.end_feed(text) from public;
grant execute on function event_store_platform.end_feed(text) to event_store_owner;
