-- A commit that tells changes holds the epoch until it ends, so that what it tells precedes the next epoch.
-- Example: select feed_epoch('orders', 1)
create or replace function event_store_platform.feed_epoch(
  v_model text,
  v_version int
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _epoch bigint;
begin
  if num_nulls(v_model, v_version) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  perform from read_models.declarations d where d.model = v_model and d.version = v_version and d.serves for share;
  if not found then
    return null;
  end if;
  select f.epoch into _epoch from read_models.feeds f where f.model = v_model and f.tells for share;
  return coalesce(_epoch, 0);
end
$$;

comment on function event_store_platform.feed_epoch(text, int) is
'Returns the epoch of the feed of read model v_model, and keeps it until the transaction ends: 0 if the feed has not begun, null if '
'version v_version does not serve. MR005 an argument is null.';
revoke all on function event_store_platform.feed_epoch(text, int) from public;
grant execute on function event_store_platform.feed_epoch(text, int) to event_store_owner;
