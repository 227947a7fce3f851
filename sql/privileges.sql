-- Which roles may use which schema and table. Each function's file says which roles may call it. Applied after the
-- functions, and again whenever they, this file or roles.sql change.
--
-- Only the role that migrated changes tables of the store; writers and consumers have no right to any. The functions
-- run with the rights of that role (security definer) and with a search_path of their own.

do $privileges$
declare
  _role text;
  _table regclass;
begin
  -- by default every role may call a new function; no role may use this schema or anything in it
  revoke all on all functions in schema event_store_private from public;

  foreach _role in array array['event_store_writer', 'event_store_consumer', 'event_store_reader', 'event_store_personal', 'event_store_owner'] loop
    execute format('grant usage on schema event_store to %I', _role);
    if _role not in ('event_store_writer', 'event_store_personal') then
      execute format('grant usage on schema event_store_platform to %I', _role);
    end if;
    execute format('revoke all on schema event_store_private from %I', _role);
    execute format('revoke all on all tables in schema event_store from %I', _role);
    if _role in ('event_store_reader', 'event_store_owner') then
      execute format('grant usage on schema read_models to %I', _role);
      execute format('grant select on all tables in schema event_store to %I', _role);
      -- A read model of another login belongs to event_store_owner, or to that login, which grants the rights to it.
      for _table in
        select oid from pg_class
        where relnamespace = 'read_models'::regnamespace and relkind in ('r', 'p', 'v') and pg_has_role(relowner, 'USAGE')
      loop
        -- Owners change rows but may not add triggers: a trigger would run with the rights of the role that drains,
        -- which may be the role that migrates.
        execute format('revoke all on table %s from %I', _table, _role);
        execute format(
          'grant %s on table %s to %I',
          case when _role = 'event_store_owner' then 'select, insert, update, delete' else 'select' end, _table, _role
        );
      end loop;
      -- read models that are made later, by the role that migrates
      execute format('alter default privileges in schema read_models grant select on tables to %I', _role);
    end if;
    if _role = 'event_store_owner' then
      execute format('grant usage, select on all sequences in schema read_models to %I', _role);
      execute format('grant create on schema read_models to %I', _role);
      -- for backups
      execute format('grant usage on schema event_store_keys to %I', _role);
      execute format('grant select on all tables in schema event_store_keys to %I', _role);
      -- frees streams, see free_deleted_lock
      execute format('grant delete on event_store.locks to %I', _role);
      -- changes of a source's log come by COPY; store_changes accepts them in the same transaction
      execute format('grant insert on event_store.wal_events to %I', _role);
    end if;
  end loop;

  -- a reader of the secrets could sign pushes as we do; that of tokens' hashes could recognize a secret
  revoke select on event_store.push_secrets, event_store.stream_tokens from event_store_reader;

  -- A URL may hold a secret: poll_views returns it to the view's owner, and an operator reads the table.
  revoke select on event_store.views from event_store_reader;
  execute (
    select format('grant select (%s) on event_store.views to event_store_reader', string_agg(quote_ident(attname), ', ' order by attnum))
    from pg_attribute
    where attrelid = 'event_store.views'::regclass and attnum > 0 and not attisdropped and attname <> 'edge_function_url'
  );
end
$privileges$;
