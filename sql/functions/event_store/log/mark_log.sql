-- All committed events are sequenced first, unless another session sequences at this moment.
-- Example: select * from mark_log('before the new price list')
create or replace function event_store_platform.mark_log(
  v_reason text
)
returns setof event_store.log_marks
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if (octet_length(v_reason) between 1 and 1024) is not true then
    perform event_store_private.refuse_request(
      format('v_reason has %s bytes', coalesce(octet_length(v_reason)::text, 'no')), 'Say in 1 to 1024 bytes what the moment is for.'
    );
  end if;
  perform event_store_platform.sequence_events();
  return query select * from event_store_private.add_mark(v_reason);
end
$$;

comment on function event_store_platform.mark_log(text) is
'Records the present high-water marks of all log partitions, for ever, and returns them. v_reason says what the '
'moment is for. MR005 v_reason is empty or too long.';
revoke all on function event_store_platform.mark_log(text) from public;
grant execute on function event_store_platform.mark_log(text) to event_store_owner;
