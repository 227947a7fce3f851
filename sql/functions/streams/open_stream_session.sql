-- A browser cannot send a header with an EventSource: it gets a cookie. Sessions that are over go.
-- Example: select open_stream_session(7, sha256('32 random bytes'))
create or replace function event_store_platform.open_stream_session(
  v_token_id bigint,
  v_hash bytea
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _lasts_s bigint;
begin
  delete from event_store.stream_tokens t
  where t.token_id in (
    select o.token_id from event_store.stream_tokens o
    where o.session_of is not null and o.expires_at <= _now
    for update skip locked
  );
  insert into event_store.stream_tokens (hash, session_of, login, made_at, expires_at)
  select v_hash, t.token_id, t.login, _now, least(t.expires_at, _now + interval '15 minutes')
  from event_store.stream_tokens t
  where t.token_id = v_token_id and t.session_of is null
    and (select count(*) from event_store.stream_tokens o where o.session_of = v_token_id and o.expires_at > _now) < 10000
  returning extract(epoch from expires_at - made_at) into _lasts_s;
  return _lasts_s;
end
$$;

comment on function event_store_platform.open_stream_session(bigint, bytea) is
'Lets the secret with the SHA-256 v_hash stand for a token for 15 minutes, at most as long as the token is good; returns the seconds, or null if it has 10000 sessions.';
revoke all on function event_store_platform.open_stream_session(bigint, bytea) from public;
grant execute on function event_store_platform.open_stream_session(bigint, bytea) to event_store_owner;
