-- What stream_events and lease_events have in common: leases free streams and returns the offsets of their next events.
-- New events must be sequenced and dispatched first. Inside a longer transaction that would keep them from others until
-- its end, so this leaves it to others (`millrace sequence` is one) where somebody did it within the last second.
-- Postgres tells a transaction of one statement only in the simple protocol; there this does it at once, where too few
-- streams wait.
create or replace function event_store_private.lease_streams(
  v_view text,
  v_limit int,
  v_seconds bigint
)
returns bigint[]
language plpgsql
volatile
set search_path = event_store, pg_temp
-- By index, whatever statistics say: they may be from when the tables were empty.
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  _recently constant timestamptz := event_store_private.clock() - interval '1 second';
  _alone constant boolean := statement_timestamp() = transaction_timestamp();
  _view event_store.views;
  _sequencer_away boolean;
  _dispatcher_away boolean;
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds not between 1 and 3600 then
    perform event_store_private.refuse_request(
      format('v_limit %s, v_lock_s %s', coalesce(v_limit::text, 'null'), coalesce(v_seconds::text, 'null')),
      'v_limit must be at least 1, v_lock_s from 1 to 3600; null means the view''s lock_timeout_s.'
    );
  end if;
  _view := event_store_private.own_view(v_view, 'rows');
  if not _view.enabled then
    return null;
  end if;
  select s.sequenced_at < _recently into _sequencer_away
  from event_store.sequencer s where s.singleton order by s.revision desc limit 1;
  select d.dispatched_at < _recently into _dispatcher_away
  from event_store.dispatches d where d.view = v_view order by d.revision desc limit 1;
  if _sequencer_away then
    perform event_store.sequence_events();
  end if;
  if _dispatcher_away then
    perform event_store.dispatch_events(v_view);
  end if;
  _delivered := event_store_private.lease_free_streams(_view, v_limit, v_seconds);
  if _alone and coalesce(cardinality(_delivered), 0) < v_limit then
    perform event_store.sequence_events();
    if event_store.dispatch_events(v_view) > 0 then
      _delivered := _delivered
        || event_store_private.lease_free_streams(_view, v_limit - coalesce(cardinality(_delivered), 0), v_seconds);
    end if;
  end if;
  return _delivered;
end
$$;

comment on function event_store_private.lease_streams(text, int, bigint) is
'Leases free streams of a rows view; returns the offsets of their next events, null for none. MR005, MR010, MR012.';
