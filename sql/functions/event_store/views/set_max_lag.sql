-- standing reports late views.
-- Example: select set_max_lag('invoices', 60)
create or replace function event_store.set_max_lag(
  v_view text,
  v_max_lag_s bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if (v_max_lag_s between 0 and 31536000) is not true then
    perform event_store_private.refuse_request(
      format('v_max_lag_s is %s', coalesce(v_max_lag_s::text, 'null')), 'v_max_lag_s is 0 to 31536000.'
    );
  end if;
  perform event_store_private.own_view(v_view);
  update event_store.views set max_lag_s = v_max_lag_s, updated_at = event_store_private.clock()
  where view = v_view and max_lag_s <> v_max_lag_s;
end
$$;

comment on function event_store.set_max_lag(text, bigint) is
'Sets how old an event may become before view v_view is late: v_max_lag_s, 300 at first. MR005 v_max_lag_s is out of '
'range; MR010 unknown view; MR041 it is another role''s.';
revoke all on function event_store.set_max_lag(text, bigint) from public;
grant execute on function event_store.set_max_lag(text, bigint) to event_store_consumer, event_store_owner;
