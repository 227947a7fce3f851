-- It is on the disk of the store then, and of the standby that it waits for, whatever the session's settings say. For
-- what others rely on and give up their own copy of.
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
'Lets this transaction be durable once its commit returns.';
