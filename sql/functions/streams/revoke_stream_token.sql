-- Servers of streams listen on the channel event_store_stream_tokens, and close what the token opened.
-- Example: select revoke_stream_token(7, 'it was in a log')
create or replace function event_store_platform.revoke_stream_token(
  v_token_id bigint,
  v_reason text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  update event_store.stream_tokens t
  set revoked_at = event_store_private.clock()
  where t.token_id = v_token_id and t.session_of is null and t.revoked_at is null;
  if not found then
    return false;
  end if;
  perform event_store_private.audit('revoke_stream_token', null, v_reason, jsonb_build_object('token_id', v_token_id));
  perform pg_notify('event_store_stream_tokens', v_token_id::text);
  return true;
end
$$;

comment on function event_store_platform.revoke_stream_token(bigint, text) is
'Ends a token with its sessions and connections at once; returns whether it was good. Audited with v_reason.';
revoke all on function event_store_platform.revoke_stream_token(bigint, text) from public;
grant execute on function event_store_platform.revoke_stream_token(bigint, text) to event_store_owner;
