-- Raises that a view belongs to a role that the caller is no member of.
create or replace function event_store_private.refuse_foreign_view(
  v_view text,
  v_owner text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'view belongs to another role'
    using
      errcode = 'MR041',
      detail = format('view %L belongs to role %s; %s is no member of it', v_view, v_owner, event_store_private.caller_role()),
      hint = 'Grant the role to the login; or let the owner of the view give it to a role of both: register_view(view, v_owner => role).';
end
$$;

comment on function event_store_private.refuse_foreign_view(text, text) is 'Raises MR041 and names the view''s owner.';
