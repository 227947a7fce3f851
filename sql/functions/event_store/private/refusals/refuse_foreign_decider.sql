-- Raises that a decider belongs to a role that the caller is no member of.
create or replace function event_store_private.refuse_foreign_decider(
  v_decider text,
  v_owner text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'decider belongs to another role'
    using
      errcode = 'MR046',
      detail = format(
        'decider %s belongs to %s; %s is no member of it', v_decider, coalesce('role ' || v_owner, 'every writer'),
        event_store_private.caller_role()
      ),
      hint = 'Grant the role to the login, or append to another decider. A decider''s first registration names its owner.';
end
$$;

comment on function event_store_private.refuse_foreign_decider(text, text) is
'Raises MR046 and names the decider''s owner.';
