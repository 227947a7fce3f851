-- How long the lease of a capture lasts.
create or replace function event_store_private.capture_lease_duration(
  v_lease_s bigint
)
returns interval
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if (v_lease_s between 1 and 2147483647) is not true then
    perform event_store_private.refuse_request(
      format('v_lease_s is %s', coalesce(v_lease_s::text, 'null')), 'A lease lasts 1 s to 2147483647 s.'
    );
  end if;
  return make_interval(secs => v_lease_s);
end
$$;

comment on function event_store_private.capture_lease_duration(bigint) is
'The length of a capture''s lease. MR005 if it is too short or too long.';
