-- The caller makes the secret and shows it once.
-- Example: select add_stream_token(sha256('32 random bytes'), 'shop_web', 'the shop''s pages', 90)
create or replace function event_store_platform.add_stream_token(
  v_hash bytea,
  v_login text,
  v_name text default null,
  v_days bigint default 90
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _token_id bigint;
begin
  perform event_store_private.refuse_request(f.fault, f.remedy)
  from (values
    (case when (octet_length(v_hash) = 32) is not true then 'v_hash is no SHA-256' end, 'It is the SHA-256 of 32 random bytes.'),
    (case when (octet_length(v_name) between 1 and 200) is false then 'v_name does not fit' end, 'A name has 1 to 200 bytes.'),
    (case when (v_days between 1 and 3650) is not true then format('v_days is %s', coalesce(v_days::text, 'null')) end,
     'A token is good for 1 to 3650 days.'),
    -- a longer text would be cut to the name of another login
    (case when (octet_length(v_login) between 1 and 63) is not true then 'v_login is no login' end, 'A name of a login has 1 to 63 bytes.'),
    (event_store_private.stream_login_fault(v_login::name), 'State a login that only reads: see docs/who_may_do_what.md.')
  ) f(fault, remedy)
  where f.fault is not null
  limit 1;
  insert into event_store.stream_tokens (hash, name, login, made_at, expires_at)
  values (v_hash, v_name, v_login, _now, _now + make_interval(days => v_days::int))
  returning token_id into _token_id;
  perform event_store_private.audit(
    'add_stream_token', null, null, jsonb_build_object('token_id', _token_id, 'login', v_login, 'name', v_name, 'days', v_days)
  );
  return _token_id;
end
$$;

comment on function event_store_platform.add_stream_token(bytea, text, text, bigint) is
'Lets the secret with the SHA-256 v_hash read over HTTP with the rights of v_login for v_days; returns the number of the token. '
'Audited, without the hash. MR005 v_login is no login, a superuser, or a member of event_store_owner; another argument is malformed.';
revoke all on function event_store_platform.add_stream_token(bytea, text, text, bigint) from public;
grant execute on function event_store_platform.add_stream_token(bytea, text, text, bigint) to event_store_owner;
