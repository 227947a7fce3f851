-- Checks, `millrace status`, metrics and alerts all read this one judgement. What the store cannot see (runs, daemons,
-- services, the source of a capture) is judged by the process that sees it.
--
-- about and subject: a view, the read_model that people read from a view, a capture, a producer, the log. since is null
-- if unknown. what, cause and remedy are sentences. severity: 'page', a person is needed now; 'ticket', it can wait
-- until the morning; 'note', it mends itself or may be intended, and no message is sent.
--
-- A view is late if an event has waited for longer than max_lag_s (set_max_lag). A dead letter alone makes no view
-- late. A version of a read model that does not serve is not late either: without a drain it is given up, unless tries
-- fail. standing reports neither that a capture with a gap stores nothing, nor a missing sequencer while a transaction
-- holds the log or no event is new.
-- Races: none; it takes no lock.
-- Example: select kind, subject, since, cause from standing()
create or replace function event_store_platform.standing(
  v_most bigint default 100000
)
returns table (
  kind text,
  about text,
  subject text,
  since timestamptz,
  severity text,
  what text,
  cause text,
  remedy text
)
language plpgsql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
begin
  return query
  with kinds(kind, severity, what, remedy) as (
    values
      ('late', 'ticket', '{} is late',
       '`millrace status` shows how far it is behind. The ticks of the sensor `poll_read_models` say why no drain of a read '
       'model starts, those of `poll_views` why a view is not pushed. `millrace dead list --waiting` lists streams that '
       'wait for a retry.'),
      ('not_dispatched', 'ticket', 'The view {} is not given its new events',
       'The sequencer tries it again, a minute apart at most. Repair what the error names; a view that has no use any more is '
       'removed: millrace view remove {}'),
      ('build_fails', 'ticket', 'No drain builds {}, the next version of a read model',
       'Correct the declaration, or what the error names: the next drain tries it again.'),
      ('given_up', 'note', 'No drain builds {}, the next version of a read model',
       'Code that declares it builds it. If that is not to come back, nothing is to do: a drain of the model removes it.'),
      ('dead_letters', 'ticket', 'The view {} gave up a stream',
       '`millrace dead list {} --show` says what failed. Repair the cause, then: millrace dead retry {}'),
      ('beyond_log', 'note', 'The view {} stands beyond the end of the log',
       'It passes over the events between, unless `millrace view seek` let it wait there. Of a read model: '
       'millrace view reset MODEL. Else: millrace view seek {} RESET_TO_EARLIEST, or RESET_TO_LATEST'),
      ('expired_lease', 'note', 'The view {} has leases past their time',
       'Their owners ended without releasing them. The next claim takes them over.'),
      ('unfinished', 'note', 'The build of {} was killed',
       'It holds up purges until it goes. The command that began it goes on with it. Or: millrace view remove {}'),
      ('gap', 'page', 'The capture {} lacks changes',
       '`millrace capture status` says what is missing; millrace capture restart {} --reason WHY reads all rows anew.'),
      ('capture_idle', 'ticket', 'The capture {} stores nothing',
       'Its source keeps its log meanwhile. See `millrace capture status`, and the ticks of the sensor `poll_{}`.'),
      ('stopped_table', 'ticket', 'The capture {} has tables that it cannot capture',
       '`millrace capture status` has the remedy. A table that is mended is captured by the next run, and read anew.'),
      ('quarantine', 'ticket', 'The capture {} has changes that are no events',
       '`millrace capture quarantined {}` says why. Repair the cause, then: millrace capture requeue {}'),
      ('overdue', 'ticket', 'The producer {} has a transaction past its deadline',
       'Is `millrace run sequencer` running? Otherwise a session holds the producer: a client with an open transaction.'),
      ('not_fired', 'ticket', 'Scheduled events are overdue',
       'Where they are held back, an operator lets them go: millrace scheduled resume --reason WHY. Else: '
       'is `millrace run sequencer` running, and does its log say why it does not get on?'),
      ('refused_events', 'ticket', 'Scheduled events of the decider {} were refused',
       '`millrace scheduled list {}` says why. Repair the cause, then: millrace scheduled retry {}'),
      ('log_held', 'page', 'No sequencer gives events their positions: an open transaction holds the log',
       'No view gets new events. `millrace run sequencer` ends a session that idles for ten seconds, an operator any: select * '
       'from event_store_platform.end_log_holder(''why''). A superuser ends what is left: pg_terminate_backend.'),
      ('not_sequenced', 'page', 'No sequencer gives events their positions',
       'Is `millrace run sequencer` running, and does its log say why it does not get on?'),
      ('old_writer', 'ticket', 'The transaction of {} has been open for long',
       'Its events have no position until it ends, and what was replaced since cannot be removed. Let it end: by '
       'pg_terminate_backend, or one that was prepared by ROLLBACK PREPARED.'),
      ('unapproved', 'note', 'The read model {} has a version that waits for approval',
       '`millrace show diff {}` says which rows it changes. Then, with the same code: millrace view approve {}'),
      ('new_shape', 'note', 'The read model {} takes events that got a new shape',
       'Nothing, if that was meant: a model that reads what is moved is built anew. Else an operator takes it back: '
       'event_store_platform.withdraw_registration(decider, event, version, ''upcast'', reason)')
  ), views as materialized (
    select i.*, v.max_lag_s from event_store.view_info(null, v_most) i join event_store.views v on v.view = i.view
  ), captures as materialized (
    select * from event_store_platform.capture_info()
  ), holder as materialized (
    select * from event_store_platform.sequencer_holder() h where h.open_since < _now - interval '30 seconds'
  ), found(kind, about, subject, since, cause) as (
    select
      case when d.view is null or d.serves then 'late' when t.failures > 0 then 'build_fails' else 'given_up' end,
      case when d.serves then 'read_model' else 'view' end, case when d.serves then d.model else v.view end,
      _now - make_interval(secs => v.lag_seconds),
      format(
        '%s%s events wait, the oldest for %s; %s s are allowed. %s of the view %s; %s of its streams wait for a retry, %s are dead letters.%s%s%s',
        case when not v.exact then 'At least ' end, v.lag, event_store_private.age_text(_now - make_interval(secs => v.lag_seconds)),
        v.max_lag_s,
        case v.consumers when 0 then 'No consumer lives' when 1 then '1 consumer lives' else format('%s consumers live', v.consumers) end,
        v.view, v.waiting, v.dead_letters,
        ' ' || w.decider || ' ' || w.decider_id || ' failed last with: ' || w.last_error,
        case when t.failures > 0 then format(' Tries of its drain in a row that failed: %s, the last with: %s', t.failures, t.error) end,
        case when not d.serves and t.failures is null then
          ' It is removed after ' || to_char((d.declared_at + interval '1 day') at time zone 'UTC', 'YYYY-MM-DD HH24:MI "UTC."')
        end
      )
    from views v
    left join read_models.declarations d on d.view = v.view
    left join lateral (
      select x.failures, x.error
      from event_store.drains x
      -- the drain of a model has the name of its first version's view
      where x.failures > 0
        and (x.drain = case when d.version > 1 then regexp_replace(v.view, '_v[0-9]+$', '') else v.view end or x.drain = '' and d.view is not null)
      order by x.drain desc
      limit 1
    ) t on true
    left join lateral (
      select k.decider, k.decider_id, k.last_error
      from event_store.stream_locks k
      where k.view = v.view and k.parked_at is null and k.attempts > 0 and k.last_error is not null and v.waiting > 0
      order by k.updated_at desc
      limit 1
    ) w on true
    where v.enabled and v.lag_seconds > v.max_lag_s and (d.view is null or d.serves or v.consumers = 0)
      and not exists (select from read_models.as_of a where a.name = d.model)
      and not exists (select from read_models.diffs x where x.name = d.model)
    union all
    select 'not_dispatched', 'view', v.view, d.failed_at, format('Dispatching them failed last with: %s', d.error)
    from views v
    join event_store.dispatches d on d.view = v.view and d.failed_at is not null
    where v.enabled and v.mode = 'rows'
    union all
    select
      'dead_letters', 'view', v.view, k.parked_at,
      format(
        '%s streams wait for an operator. %s %s was given up after attempt %s: %s',
        v.dead_letters, k.decider, k.decider_id, k.attempts, coalesce(k.last_error, 'no reason given')
      )
    from views v
    cross join lateral (
      select * from event_store.stream_locks k
      where k.view = v.view and k.parked_at is not null
      order by k.parked_at, k.decider_id, k.decider
      limit 1
    ) k
    where v.dead_letters > 0
    union all
    select
      'beyond_log', 'view', b.view, null,
      string_agg(
        format('It stands at position %s of log partition %s, which ends at %s.', b.position, b.partition, b.high_water_mark),
        ' ' order by b.partition
      )
    from event_store_platform.views_beyond_log() b
    group by b.view
    union all
    select
      case when b.expires_at is null then 'expired_lease' else 'unfinished' end, 'view', e.view, null,
      string_agg(format('%s holds %s log partitions.', e.lease_owner, e.partitions), ' ' order by e.lease_owner)
      || coalesce(' It goes by itself within two hours after ' || to_char(b.expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI" UTC."'), '')
    from event_store_platform.expired_leases() e
    left join lateral (
      select a.expires_at from read_models.as_of a where a.name = e.view
      union all
      select x.expires_at from read_models.diffs x where x.name = e.view
    ) b on true
    group by e.view, b.expires_at
    union all
    select
      'gap', 'capture', c.capture, g.detected_at,
      format('%s ranges of changes are missing: %s', c.open_gaps, g.reason)
    from captures c
    cross join lateral (
      select * from event_store.capture_gaps g
      where g.capture = c.capture and g.resolved_by_generation is null
      order by g.gap_id
      limit 1
    ) g
    union all
    select
      'capture_idle', 'capture', c.capture, c.stored_at,
      format('It has stored nothing for %s, and reads slot %s.', event_store_private.age_text(c.stored_at), c.slot)
    from captures c
    where c.stored_at < _now - interval '15 minutes' and c.open_gaps = 0
    union all
    select
      'stopped_table', 'capture', t.capture, min(t.stopped_at),
      string_agg(format('%s.%s: %s', t.schema_name, t.table_name, t.stopped_reason), ' ' order by t.stopped_at, t.schema_name, t.table_name)
    from event_store.captured_tables t
    where t.stopped_reason is not null
    group by t.capture
    union all
    select
      'quarantine', 'capture', c.capture, q.quarantined_at,
      format('%s changes wait for an operator. %s %s: %s', c.quarantined + c.held, q.decider, q.decider_id, q.fault)
    from captures c
    cross join lateral (
      select * from event_store.quarantined_changes q
      where q.capture = c.capture
      order by q.fault is null, q.quarantine_id
      limit 1
    ) q
    where c.quarantined + c.held > 0
    union all
    select
      'overdue', 'producer', o.producer_id, min(o.expires_at),
      string_agg(
        format('Partition %s: message %s, begun %s ago.', o.partition, o.sequence, event_store_private.age_text(o.begun_at)),
        ' ' order by o.partition
      )
    from event_store_platform.overdue_transactions() o
    group by o.producer_id
    union all
    select
      'not_fired', 'log', 'scheduled events', min(s.next_at),
      format(
        'One waits for %s%s.', event_store_private.age_text(min(s.next_at)), ', held back: ' || event_store_private.held_because()
      )
    from event_store_private.scheduling_roles() r(role)
    cross join lateral (
      select o.next_at from event_store.scheduled_events o where o.done_at is null and o.made_by = r.role order by o.next_at limit 1
    ) s
    having min(s.next_at) < _now - interval '1 minute'
    union all
    select
      'refused_events', 'decider', s.decider, min(s.done_at),
      format('%s wait for an operator, the first with: %s', count(*), (array_agg(s.last_error order by s.done_at))[1])
    from event_store.scheduled_events s
    where s.outcome = 'refused'
    group by s.decider
    union all
    select
      'log_held', 'log', format('process %s', h.pid), h.open_since,
      format(
        'Process %s of login %s (%s) holds the sequencer in a transaction that has been open for %s.',
        h.pid, coalesce(h.login, 'unknown'), coalesce(nullif(h.application_name, ''), 'no application name'),
        event_store_private.age_text(h.open_since)
      )
    from holder h
    union all
    select
      'not_sequenced', 'log', 'the log', nullif(s.sequenced_at, '-infinity'),
      format(
        'There are new events, and no sequencer has looked for them %s.',
        case when isfinite(s.sequenced_at) then 'for ' || event_store_private.age_text(s.sequenced_at) else 'ever' end
      )
    from (select q.* from event_store.sequencer q where q.singleton order by q.revision desc limit 1) s
    where s.sequenced_at < _now - interval '30 seconds' and not exists (select from holder)
      and event_store_private.has_fresh_events(s.snapshot, event_store_private.committed_snapshot())
    union all
    select
      'old_writer', 'log', w.name, w.open_since,
      format(
        'It has written, and has been open for %s: %s of login %s%s.',
        event_store_private.age_text(w.open_since), w.name, coalesce(w.login, 'unknown'), ' (' || nullif(w.application_name, '') || ')'
      )
    from (
      select o.*, case when o.pid is null then format('the prepared transaction %s', o.prepared) else format('process %s', o.pid) end as name
      from event_store_platform.oldest_writer() o
    ) w
    where w.open_since < _now - interval '15 minutes'
    union all
    select
      'unapproved', 'read_model', d.model, d.declared_at,
      format('People read what was before version %s, which does not serve until an operator approves it.', d.version)
    from read_models.declarations d
    where not d.approved and not d.serves
      and not exists (select from read_models.declarations n where n.model = d.model and n.version > d.version)
    union all
    select
      'new_shape', 'read_model', d.model, min(a.done_at),
      left(string_agg(
        format('%s registered an upcast of %s of %s to version %s.', a.done_by, u.event, u.decider, u.to_version), ' ' order by a.audit_id desc
      ), 1000)
    from event_store.audit_log a
    join event_store.event_upcasts u
      on u.decider = a.detail ->> 'decider' and u.event = a.detail ->> 'event' and u.digest = a.detail ->> 'digest'
      and u.to_version = (a.detail ->> 'to_version')::bigint
    join event_store.views v on event_store_private.wants(v.deciders, v.events, u.decider, u.event)
    join read_models.declarations d on d.view = v.view and d.serves
    where a.operation = 'register_event_upcast' and a.done_at > _now - interval '1 day'
    group by d.model
  )
  select
    f.kind, f.about, f.subject, f.since, k.severity, replace(k.what, '{}', f.subject), f.cause,
    replace(k.remedy, '{}', event_store_private.shell_word(f.subject))
  from found f
  join kinds k using (kind)
  order by array_position(array['page', 'ticket'], k.severity), f.since, f.kind, f.subject;
end
$$;

comment on function event_store_platform.standing(bigint) is
'Returns what is wrong in the store now, a row each: the kind and what it affects (kind, about, subject), since when, '
'its severity (page, ticket, note), the first observation (cause), and the remedy. v_most bounds how many events are '
'read to count lags. MR005 v_most is not positive.';
revoke all on function event_store_platform.standing(bigint) from public;
grant execute on function event_store_platform.standing(bigint) to event_store_consumer, event_store_reader, event_store_owner;
