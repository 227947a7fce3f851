-- Found by its newest revision: dead versions stay while somebody holds an old snapshot. Who holds the lock of its name
-- may change the row by what this returns.
create or replace function event_store_private.newest_capture(
  v_capture text
)
returns tid
language plpgsql
stable
set search_path = event_store, pg_temp
-- by index, also in a session that planned it for an empty table
as $$
-- planner: indexed ordered
begin
  return (select c.ctid from event_store.captures c where c.capture = v_capture order by c.revision desc limit 1);
end
$$;

comment on function event_store_private.newest_capture(text) is
'Where the row of a capture is; null where there is none. It looks at no dead versions of the row.';
