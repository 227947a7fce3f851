-- So two concurrent first registrations of a decider cannot name two owners.
create or replace function event_store_private.lock_deciders()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
set lock_timeout = '5s'
as $$
begin
  lock table event_store.deciders in share row exclusive mode;
exception when lock_not_available then
  raise exception 'another transaction registers events, and does not end'
    using
      errcode = 'lock_not_available',
      detail = format('It is of process %s. Nothing was registered.', event_store_private.lock_holders('event_store.deciders')),
      hint = 'Try again when it has ended: register in a transaction of its own.';
end
$$;

comment on function event_store_private.lock_deciders() is
'Serializes registrations of deciders; after five seconds 55P03 names the process that it waits for.';
