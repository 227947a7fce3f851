-- The store's roles. Applied before the functions, and again whenever they, this file or privileges.sql change.
--
-- event_store_writer    appends events and reads streams
-- event_store_consumer  registers views and consumes them
-- event_store_reader    reads everything, tables too, as Spark and reports do; changes nothing
-- event_store_personal  asks for the keys of people's data, to seal and to open them
-- event_store_owner     all of it, builds read models, and does what operators do: moves and removes views, settles
--                       dead letters, shortens the log, captures changes
--
-- The roles cannot log in: grant them to logins. They belong to the cluster: a dump of the database names them but does
-- not contain them. The role that migrates needs CREATEROLE, unless they exist.

do $roles$
declare
  _role text;
begin
  foreach _role in array array['event_store_writer', 'event_store_consumer', 'event_store_reader', 'event_store_personal', 'event_store_owner'] loop
    begin
      if not exists (select from pg_roles where rolname = _role) then
        execute format('create role %I nologin', _role);
      end if;
    exception
      when duplicate_object or unique_violation then
        null; -- the migrator of another database was first
    end;
  end loop;
end
$roles$;

-- Each function's file grants its rights anew. A grant that is in no file any more is gone.
revoke all on all functions in schema event_store, event_store_platform, event_store_private
from public, event_store_writer, event_store_consumer, event_store_reader, event_store_personal, event_store_owner;
