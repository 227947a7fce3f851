-- So a poller can tell a consumer that waits for events from one that died. With a name it counts once, however many
-- sessions a connection pool gives it. This takes no lock: a login without grants cannot count as a consumer, and
-- nothing stays on a pooled session.
create or replace function event_store_platform.attach_consumer(
  v_view text,
  v_consumer text default null,
  v_attached_s bigint default 900
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
  if v_consumer = '' or octet_length(v_consumer) > 200 or coalesce(v_attached_s, 0) not between 1 and 3600 then
    perform event_store_private.refuse_request(
      format('v_consumer %L, v_attached_s %s', left(v_consumer, 200), coalesce(v_attached_s::text, 'null')),
      'v_consumer has 1 to 200 bytes, or is null for this session; v_attached_s is from 1 to 3600.'
    );
  end if;
  perform event_store_private.own_view(v_view);
  delete from event_store.consumers where view = v_view and attached_until <= _now;
  insert into event_store.consumers as c (view, consumer, pid, session_began_at, attached_until)
  values (
    v_view, coalesce(v_consumer, 'session ' || pg_backend_pid()), pg_backend_pid(), event_store_private.session_began(),
    _now + make_interval(secs => v_attached_s)
  )
  on conflict (view, consumer) do update
  set pid = excluded.pid, session_began_at = excluded.session_began_at, attached_until = excluded.attached_until;
end
$$;

comment on function event_store_platform.attach_consumer(text, text, bigint) is
'Marks the caller as a live consumer of a view, named v_consumer (null: by its session), for v_attached_s or until its '
'session ends; poll_views and view_info count it. Attach again in time. MR005 an argument is out of range; MR010 unknown '
'view; MR041 another role''s view.';
revoke all on function event_store_platform.attach_consumer(text, text, bigint) from public;
grant execute on function event_store_platform.attach_consumer(text, text, bigint) to event_store_consumer, event_store_owner;
