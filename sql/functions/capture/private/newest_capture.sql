-- Found by its newest revision: dead versions stay while a session holds an old snapshot. The holder of the name's lock
-- may change the row by the returned ctid.
create or replace function event_store_private.newest_capture(
  v_capture text
)
returns tid
language plpgsql
stable
set search_path = event_store, pg_temp
-- by index, even in a session that planned it for an empty table
as $$
-- planner: indexed ordered
begin
  return (select c.ctid from event_store.captures c where c.capture = v_capture order by c.revision desc limit 1);
end
$$;

comment on function event_store_private.newest_capture(text) is
'The ctid of a capture''s row; null if there is none. It reads no dead versions of the row.';
