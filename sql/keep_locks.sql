-- Lets only members of event_store_owner create what takes locks and needs no right to any object: temporary tables,
-- advisory locks, large objects. A server has one lock table for all its databases. Any login that may connect can fill
-- it, and then every statement of every session fails. `millrace up` runs this in the embedded store. On a server of
-- your own, run it as a superuser in each database, unless something else there needs these rights:
--
--     psql -d mydatabase -f sql/keep_locks.sql
do $keep_locks$
declare
  _right text;
begin
  foreach _right in array array[
    format('temporary on database %I', current_database()),
    (
      select 'execute on function ' || string_agg(oid::regprocedure::text, ', ')
      from pg_proc
      where pronamespace = 'pg_catalog'::regnamespace
        and (proname ~ '^pg_(try_)?advisory_' or proname in ('lo_creat', 'lo_create', 'lo_from_bytea', 'lo_unlink'))
    )
  ] loop
    execute format('revoke %s from public', _right);
    execute format('grant %s to event_store_owner', _right);
  end loop;
end
$keep_locks$;
