-- An unregistered producer has no state and no messages: it passes.
create or replace function event_store_private.require_producer(
  v_producer_id text,
  v_partition int
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _owner text;
begin
  select owner into _owner from event_store.producers where producer_id = v_producer_id and partition = v_partition;
  if not event_store_private.may_use(_owner) then
    perform event_store_private.refuse_foreign_producer(v_producer_id, v_partition, _owner);
  end if;
end
$$;

comment on function event_store_private.require_producer(text, int) is
'MR045 if a producer belongs to a role that the login is no member of.';
