-- Who may do what. Applied after the functions, again whenever they or this file change.
--
-- event_store_writer    appends events and reads streams
-- event_store_consumer  registers views and consumes them
-- event_store_reader    reads everything, tables too, as Spark and reports do; changes nothing
-- event_store_owner     all of it, builds read models, and what operators do: moves and removes views, settles dead letters,
--                       shortens the log, captures changes
--
-- The roles cannot log in: grant them to those that can. Nobody but who migrated changes a table of the store; writers and
-- consumers have no right to any. The functions run with the rights of the role that migrated (security definer) and with a
-- search_path of their own.
-- The roles belong to the cluster: a dump of the database names them and does not contain them. Who migrates needs CREATEROLE,
-- unless they exist.

do $privileges$
declare
  _role text;
  _functions text[];
  _function regprocedure;
  _table regclass;
  _writing constant text[] := array[
    'register_decider_event', 'append_event', 'append_events', 'get_events', 'get_last_event', 'stream_head',
    'stream_partition', 'register_producer', 'begin_transaction', 'add_state_change', 'add_events', 'commit_transaction',
    'abort_transaction', 'abandon_transaction', 'ingest_events', 'get_producer_state'
  ];
  _reading constant text[] := array[
    'get_events', 'get_last_event', 'stream_head', 'read_log', 'available_offset_range', 'validate_offset_range',
    'offset_for_timestamp', 'offsets_for_timestamp', 'stream_partition', 'partition_info', 'view_info', 'view_lag', 'poll_views', 'lease_owners', 'dead_letters',
    'archive_state', 'get_producer_state', 'producer_statistics', 'capture_info'
  ];
  _consuming constant text[] := _reading || array[
    'register_view', 'attach_consumer', 'sequence_events', 'stream_events', 'lease_events', 'ack_event', 'ack_events',
    'nack_event', 'schedule_nack_event', 'fail_event', 'extend_lock', 'dispatch_events', 'claim_batch', 'claim_partition',
    'locked_partitions', 'read_batch', 'fail_streams', 'commit_batch', 'extend_lease', 'release_batch', 'release_owner', 'pass_over_unwanted',
    'expire_transactions'
  ];
  _operating constant text[] := array[
    'enable_view', 'unregister_view', 'seek_view', 'retry_dead_letters', 'discard_dead_letter', 'mark_archived',
    'raise_low_water_mark', 'purge_events', 'list_archive_file', 'lock_archive', 'sequenced_streams', 'backup_cut', 'begin_restore',
    'finish_restore', 'has_caught_up', 'hold_producers', 'is_sequenced'
  ];
  _capturing constant text[] := array[
    'register_capture', 'claim_capture', 'extend_capture', 'release_capture', 'begin_generation', 'publish_tables', 'store_changes',
    'verify_changes', 'emit_changes', 'emit_rows', 'finish_backfill', 'record_gap', 'requeue_changes', 'repair_change', 'discard_change',
    'restart_capture', 'purge_wal_events', 'unregister_capture'
  ];
begin
  revoke all on all functions in schema event_store from public;

  for _role, _functions in
    values
      ('event_store_writer', _writing),
      ('event_store_consumer', _consuming),
      ('event_store_reader', _reading),
      ('event_store_owner', _writing || _consuming || _operating || _capturing)
  loop
    begin
      if not exists (select from pg_roles where rolname = _role) then
        execute format('create role %I nologin', _role);
      end if;
    exception
      when duplicate_object or unique_violation then
        null; -- the migrator of another database was first
    end;
    execute format('grant usage on schema event_store to %I', _role);
    execute format('revoke all on all functions in schema event_store from %I', _role);
    execute format('revoke all on all tables in schema event_store from %I', _role);
    for _function in
      select oid from pg_proc where pronamespace = 'event_store'::regnamespace and proname = any (_functions)
    loop
      execute format('grant execute on function %s to %I', _function, _role);
    end loop;
    if _role in ('event_store_reader', 'event_store_owner') then
      execute format('grant usage on schema read_models to %I', _role);
      execute format('grant select on all tables in schema event_store to %I', _role);
      -- A read model that another login made belongs to event_store_owner or to that login, who granted what is to be granted.
      for _table in
        select oid from pg_class
        where relnamespace = 'read_models'::regnamespace and relkind in ('r', 'p', 'v') and pg_has_role(relowner, 'USAGE')
      loop
        execute format(
          'grant %s on table %s to %I', case when _role = 'event_store_owner' then 'all' else 'select' end, _table, _role
        );
      end loop;
      -- read models that are made later, by the role that migrates
      execute format('alter default privileges in schema read_models grant select on tables to %I', _role);
    end if;
    if _role = 'event_store_owner' then
      execute format('grant all on all sequences in schema read_models to %I', _role);
      execute format('grant create on schema read_models to %I', _role);
      -- what a source's log has is copied; store_changes, in the same transaction, says that it may stay
      execute format('grant insert on event_store.wal_events to %I', _role);
    end if;
  end loop;
end
$privileges$;
