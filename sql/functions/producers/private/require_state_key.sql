-- Refuses an invalid key of a producer's state.
create or replace function event_store_private.require_state_key(
  v_key text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if (octet_length(v_key) between 1 and 1024) is not true then
    perform event_store_private.refuse_request(
      format('v_key has %s bytes', coalesce(octet_length(v_key)::text, 'no')), 'Any text of 1 to 1024 bytes is a key.'
    );
  end if;
end
$$;

comment on function event_store_private.require_state_key(text) is
'MR005 unless it is a valid key of a producer''s state.';
