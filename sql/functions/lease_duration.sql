-- How long a lease lasts: as the caller says, or the view's lock_timeout_s. Checks the caller's words.
create or replace function event_store.lease_duration(
  v_view event_store.views,
  v_owner text,
  v_lease_s bigint
)
returns interval
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if coalesce(v_owner, '') = '' or v_lease_s <= 0 then
    raise exception 'claim is malformed'
      using
        errcode = 'MR005',
        detail = format('owner %L, lease of %s s', v_owner, v_lease_s),
        hint = 'An owner is named, and a lease lasts at least 1 s; null means the view''s lock_timeout_s.';
  end if;
  return make_interval(secs => coalesce(v_lease_s, v_view.lock_timeout_s));
end
$$;

comment on function event_store.lease_duration(event_store.views, text, bigint) is 'The length of a lease. MR005 for an owner without a name or a length below 1 s.';
