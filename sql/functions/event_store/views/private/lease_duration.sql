-- The caller states it; the default is the view's lock_timeout_s.
create or replace function event_store_private.lease_duration(
  v_view event_store.views,
  v_lease_s bigint
)
returns interval
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if v_lease_s not between 1 and 3600 then
    perform event_store_private.refuse_request(
      format('v_lease_s is %s', v_lease_s), 'A lease lasts from 1 s to 3600 s; null means the view''s lock_timeout_s. extend_lease lets it last longer.'
    );
  end if;
  return make_interval(secs => coalesce(v_lease_s, v_view.lock_timeout_s));
end
$$;

comment on function event_store_private.lease_duration(event_store.views, bigint) is
'The length of a lease. MR005 it is too short or too long.';
