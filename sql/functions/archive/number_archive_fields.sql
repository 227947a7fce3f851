-- A number is permanent: no file is rewritten for a new number. A writer that was killed may leave a number without a
-- file, which does no harm.
-- Example: select * from number_archive_fields('{amount,customer}')
create or replace function event_store_platform.number_archive_fields(
  v_fields text[]
)
returns setof event_store.archive_fields
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_fields is null or array_ndims(v_fields) > 1 or array_position(v_fields, null) is not null then
    perform event_store_private.refuse_request(format('v_fields is %L', v_fields), 'v_fields names fields of data, in a row.');
  end if;
  if exists (select from unnest(v_fields) asked(field) where not exists (select from event_store.archive_fields f where f.field = asked.field)) then
    -- another writer may number them at the same time
    lock table event_store.archive_fields in share row exclusive mode;
    insert into event_store.archive_fields (field, field_id)
    select asked.field, coalesce((select max(field_id) from event_store.archive_fields), 999) + row_number() over (order by asked.field)
    from (select distinct unnest(v_fields)) asked(field)
    where not exists (select from event_store.archive_fields f where f.field = asked.field);
  end if;
  return query select * from event_store.archive_fields f where f.field = any (v_fields);
end
$$;

comment on function event_store_platform.number_archive_fields(text[]) is
'Returns the number of each field of data as a column of the archive''s files, from 1000 on; a field without a number '
'gets a new one. MR005 v_fields is null, or has a null or more than one dimension.';
revoke all on function event_store_platform.number_archive_fields(text[]) from public;
grant execute on function event_store_platform.number_archive_fields(text[]) to event_store_owner;
