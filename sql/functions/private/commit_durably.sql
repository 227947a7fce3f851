-- The commit is then on the disk of the store, and of the standby that it waits for, whatever the session's settings
-- are. For data that other systems rely on and drop their own copy of.
create or replace function event_store_private.commit_durably()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
end
$$;

comment on function event_store_private.commit_durably() is
'Makes this transaction durable once its commit returns.';
