-- The registration of a capture; raises MR030 if there is none.
create or replace function event_store_private.known_capture(
  v_capture text
)
returns event_store.captures
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
begin
  select * into _capture from event_store.captures where ctid = event_store_private.newest_capture(v_capture);
  if not found then
    raise exception 'capture is not registered'
      using
        errcode = 'MR030',
        detail = format(
          'capture %L; there are: %s', v_capture, coalesce((select string_agg(capture, ', ' order by capture) from event_store.captures), 'none')
        ),
        hint = 'Register it: select register_capture(capture, slot, publication, tables).';
  end if;
  return _capture;
end
$$;

comment on function event_store_private.known_capture(text) is 'A capture''s registration. MR030 unknown.';
