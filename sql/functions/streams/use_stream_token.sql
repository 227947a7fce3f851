-- Found by the index of hashes: how long that takes tells nothing of a secret.
-- Example: select * from use_stream_token(sha256('32 random bytes'), false)
create or replace function event_store_platform.use_stream_token(
  v_hash bytea,
  v_is_session boolean
)
returns table (
  token_id bigint,
  login text,
  fault text
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  with found as (
    select
      t.token_id, t.login::text,
      case
        when s.expires_at <= event_store_private.clock() then 'It has expired.'
        else event_store_private.stream_token_fault(t)
      end as fault
    from event_store.stream_tokens s
    join event_store.stream_tokens t on t.token_id = coalesce(s.session_of, s.token_id)
    where s.hash = v_hash and (s.session_of is not null) = v_is_session
  ), unused as (
    select t.token_id
    from found f
    join event_store.stream_tokens t on t.token_id = f.token_id
    where f.fault is null and (t.last_used_at > event_store_private.clock() - interval '1 minute') is not true
    -- an operator revokes it, or another reader notes the same
    for no key update of t skip locked
  ), noted as (
    update event_store.stream_tokens t
    set last_used_at = event_store_private.clock()
    from unused u
    where t.token_id = u.token_id
  )
  select f.token_id, f.login, f.fault from found f
$$;

comment on function event_store_platform.use_stream_token(bytea, boolean) is
'Returns the token with the hash v_hash, or for a session its token, with the login that it stands for; fault says why it gives '
'nothing, and is null while it is good. Returns nothing if there is none.';
revoke all on function event_store_platform.use_stream_token(bytea, boolean) from public;
grant execute on function event_store_platform.use_stream_token(bytea, boolean) to event_store_owner;
