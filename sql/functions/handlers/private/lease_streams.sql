-- The common part of stream_events and lease_events.
-- New events must be sequenced and dispatched first, which locks the sequencer's row until the caller's transaction
-- ends. So this leaves that to a running sequencer (`millrace run sequencer`). Without one it does so itself if too few
-- streams wait, and bounds the cost of a forgotten transaction: Postgres ends one that then idles for ten seconds. The
-- protocol does not mark a transaction of one statement, so it is no exception. In a transaction that wrote before, or
-- above READ COMMITTED, this does so only if no process did within a second.
create or replace function event_store_private.lease_streams(
  v_view text,
  v_limit int,
  v_seconds bigint,
  v_ahead boolean
)
returns bigint[]
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
declare
  _attended constant boolean := event_store_platform.is_attended();
  -- A sleeping sequencer looks once a second, and dispatches every ten seconds if nothing is new.
  _recently constant interval := make_interval(secs => 1 + _attended::int);
  _dispatched_recently constant interval := make_interval(secs => case when _attended then 15 else 1 end);
  _sequences constant boolean := not _attended
    and pg_current_xact_id_if_assigned() is null
    and current_setting('transaction_isolation') = 'read committed';
  _view event_store.views;
  _sequencer_away boolean;
  _dispatcher_away boolean;
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds not between 1 and 3600 or v_ahead is null then
    perform event_store_private.refuse_request(
      format(
        'v_limit %s, v_seconds %s, v_ahead %s',
        coalesce(v_limit::text, 'null'), coalesce(v_seconds::text, 'null'), coalesce(v_ahead::text, 'null')
      ),
      'v_limit must be at least 1; v_seconds from 1 to 3600, or null for the view''s lock_timeout_s; v_ahead true or false.'
    );
  end if;
  _view := event_store_private.own_view(v_view, 'rows');
  if not _view.enabled then
    return null;
  end if;
  -- A time in the future was stored before the clock was set back.
  select s.sequenced_at not between event_store_private.clock() - _recently and event_store_private.clock() + _recently and not _attended into _sequencer_away
  from event_store.sequencer s where s.singleton order by s.revision desc limit 1;
  select d.dispatched_at not between event_store_private.clock() - _dispatched_recently and event_store_private.clock() + _dispatched_recently into _dispatcher_away
  from event_store.dispatches d where d.view = v_view order by d.revision desc limit 1;
  if _sequencer_away then
    perform event_store_platform.sequence_events();
  end if;
  if _dispatcher_away then
    perform event_store_platform.dispatch_events(v_view);
  end if;
  _delivered := event_store_private.lease_free_streams(_view, v_limit, v_seconds, v_ahead);
  if _sequences and coalesce(cardinality(_delivered), 0) < v_limit then
    perform event_store_private.bound_idle_transaction();
    perform event_store_platform.sequence_events();
    if event_store_platform.dispatch_events(v_view) > 0 then
      _delivered := _delivered
        || event_store_private.lease_free_streams(_view, v_limit - coalesce(cardinality(_delivered), 0), v_seconds, v_ahead);
    end if;
  end if;
  return _delivered;
end
$$;

comment on function event_store_private.lease_streams(text, int, bigint, boolean) is
'Leases free streams of a rows view; returns the offsets of their next events, null for none. MR005, MR010, MR012.';
