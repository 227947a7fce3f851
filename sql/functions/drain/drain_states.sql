-- One row for each name, also for a name that no caller asked for yet. A drain is under way from the request until it
-- ends. It lives while its owner is attached (attach_consumer) to the view of its name, or to a view of
-- event_store_owner's, or holds the lease of a capture. It is dead, and no longer under way, if its owner was attached
-- and does not live any more, if it did not begin within 30 s after the request, or if its owner is not attached 120 s
-- after it began. After a restart of the server it has 120 s to come back. The next try may start 5 s after a failure;
-- each further failure doubles that wait, up to a minute. A caller that asks checks first whether Dagster is still
-- starting a run: on a busy machine that takes longer. Races: none; it takes no lock.
-- Example: select since_s, failures from drain_states('{invoices}')
create or replace function event_store_platform.drain_states(
  v_drains text[]
)
returns table (
  drain text,
  owner text,
  since_s double precision,
  lives boolean,
  failures int,
  error text,
  wait_s double precision,
  ended_s double precision
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  select
    n.drain,
    case when not x.is_dead then d.owner end,
    case when not x.is_dead then extract(epoch from t.now - coalesce(d.began_at, d.asked_at)) end,
    a.lives,
    tries.failures,
    case when x.is_dead then 'Its run died, or did not begin in time.' else d.error end,
    case when tries.failures > 0 then greatest(least(5 * 2 ^ least(tries.failures - 1, 16), 60) - tries.ended_s, 0) else 0 end,
    tries.ended_s
  from unnest(v_drains) n(drain)
  cross join (select event_store_private.clock() as now offset 0) t
  left join event_store.drains d on d.drain = n.drain
  cross join lateral (
    select coalesce(bool_or(c.lives), false) as lives, d.began_at is not null and count(*) > 0 as was_attached
    from (
      select c.attached_until > t.now and event_store_private.lives(c.pid, c.session_began_at) as lives
      from event_store.consumers c
      join event_store.views v using (view)
      -- any login may attach under any name to a view of its own
      where c.consumer = d.owner
        and (v.view = d.drain or pg_has_role(to_regrole(quote_ident(v.owner)), 'event_store_owner', 'member'))
      union all
      select c.leased_until > t.now from event_store.captures c where c.lease_owner = d.owner
    ) c
  ) a
  cross join lateral (
    select
      d.asked_at is not null and not a.lives
      and (a.was_attached or coalesce(d.began_at + interval '120 s', d.asked_at + interval '30 s') <= t.now)
      -- A restart of the server ended all sessions; a run that lives attaches again.
      and (
        coalesce(d.began_at, d.asked_at) >= pg_postmaster_start_time()
        or pg_postmaster_start_time() + interval '120 s' <= t.now
      ) as is_dead
  ) x
  cross join lateral (
    select
      coalesce(d.failures, 0) + x.is_dead::int as failures,
      extract(epoch from t.now - case when x.is_dead then coalesce(d.began_at, d.asked_at) else d.ended_at end)::float as ended_s
  ) tries
$$;

comment on function event_store_platform.drain_states(text[]) is
'Returns the state of each drain of v_drains (a view, a capture, or the empty name for all views): its owner, for how '
'many seconds it is under way (null: it is not), whether it lives, how many tries failed in a row, the last error, in '
'how many seconds the next may start, and how many ago the last one ended. A dead drain counts as a failed try.';
revoke all on function event_store_platform.drain_states(text[]) from public;
grant execute on function event_store_platform.drain_states(text[]) to event_store_reader, event_store_owner;
