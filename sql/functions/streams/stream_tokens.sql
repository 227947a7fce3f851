-- Example: select login, fault from stream_tokens()
create or replace function event_store_platform.stream_tokens()
returns table (
  token_id bigint,
  name text,
  login text,
  made_at timestamptz,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  fault text
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select
    t.token_id, t.name, t.login::text, t.made_at, t.expires_at, t.revoked_at, t.last_used_at,
    event_store_private.stream_token_fault(t)
  from event_store.stream_tokens t
  where t.session_of is null
  order by t.token_id
$$;

comment on function event_store_platform.stream_tokens() is
'Returns the tokens that read over HTTP, the oldest first; fault says why one gives nothing, and is null while it is good.';
revoke all on function event_store_platform.stream_tokens() from public;
grant execute on function event_store_platform.stream_tokens() to event_store_owner;
