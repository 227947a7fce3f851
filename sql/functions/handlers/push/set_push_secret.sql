-- Receivers switch while both sign. There are two secrets at most. Setting the current one again changes nothing.
-- Races: two callers take turns at the view's row.
-- Example: select set_push_secret('hook', 'whsec_…', 86400, 'the yearly rotation')
create or replace function event_store_platform.set_push_secret(
  v_view text,
  v_secret text,
  v_keep_s bigint default 86400,
  v_reason text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
begin
  if (v_keep_s between 0 and 31536000) is not true then
    perform event_store_private.refuse_request(
      format('v_keep_s is %s', coalesce(v_keep_s::text, 'null')), 'v_keep_s is 0 to 31536000: up to a year.'
    );
  end if;
  -- do not show the value
  if (v_secret ~ '^whsec_[A-Za-z0-9+/]{32,86}={0,2}$') is not true then
    perform event_store_private.refuse_request(
      'v_secret is no secret of Standard Webhooks',
      'It is whsec_ and the base64 of 24 to 64 random bytes: millrace view secret makes one.'
    );
  end if;
  perform event_store_private.known_view(v_view, 'rows');
  perform from event_store.views v where v.view = v_view for no key update;
  if exists (select from event_store.push_secrets s where s.view = v_view and s.retires_at is null and s.secret = v_secret) then
    return;
  end if;
  delete from event_store.push_secrets s where s.view = v_view and (s.retires_at is not null or v_keep_s = 0);
  update event_store.push_secrets s set retires_at = _now + make_interval(secs => v_keep_s) where s.view = v_view;
  insert into event_store.push_secrets (view, secret, made_at) values (v_view, v_secret, _now);
  perform event_store_private.audit('set_push_secret', v_view, v_reason, jsonb_build_object('keep_s', v_keep_s));
end
$$;

comment on function event_store_platform.set_push_secret(text, text, bigint, text) is
'Gives view v_view the secret that signs its pushes; the previous one also signs for v_keep_s. Audited with v_reason, '
'without the secret. MR005 v_secret is malformed, or v_keep_s is out of range; MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store_platform.set_push_secret(text, text, bigint, text) from public;
grant execute on function event_store_platform.set_push_secret(text, text, bigint, text) to event_store_owner;
