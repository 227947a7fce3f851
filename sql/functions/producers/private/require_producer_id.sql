-- Refuses an invalid producer id or partition.
create or replace function event_store_private.require_producer_id(
  v_producer_id text,
  v_partition int
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if (octet_length(v_producer_id) between 1 and 1024) is not true then
    perform event_store_private.refuse_request(
      format('v_producer_id has %s bytes', coalesce(octet_length(v_producer_id)::text, 'no')), 'Any text of 1 to 1024 bytes names a producer.'
    );
  elsif (v_partition >= 0) is not true then
    perform event_store_private.refuse_request(
      format('v_partition is %s', coalesce(v_partition::text, 'null')), 'The partitions of a producer''s source count from 0.'
    );
  end if;
end
$$;

comment on function event_store_private.require_producer_id(text, int) is
'MR005 unless it is a valid producer and partition.';
