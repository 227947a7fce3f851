-- A session has the rights of its token, and ends with it.
create or replace function event_store_private.stream_token_fault(
  v_token event_store.stream_tokens
)
returns text
language sql
stable
as $$
  select case
    when v_token.revoked_at is not null then 'It is revoked.'
    when v_token.expires_at <= event_store_private.clock() then 'It has expired.'
    else event_store_private.stream_login_fault(v_token.login)
  end
$$;

comment on function event_store_private.stream_token_fault(event_store.stream_tokens) is
'Why a token gives nothing; null while it is good.';
