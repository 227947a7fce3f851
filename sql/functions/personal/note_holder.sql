-- An append goes on whatever fails here, such as at a standby. A call that would wait for another one leaves it to
-- that one, and a holder is noted once in a minute.
-- Example: select note_holder('app-1', '/run/millrace/keys', array[1, 2])
create or replace function event_store.note_holder(
  v_host text,
  v_folder text,
  v_epochs int[]
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
set lock_timeout = '10ms'
as $$
declare
  _host text := left(v_host, 100);
  _folder text := left(v_folder, 500); -- more does not fit into an index
  _now timestamptz := event_store_private.clock();
begin
  if num_nulls(v_host, v_folder, v_epochs) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'State the machine, the folder, and the epochs of its files.');
  end if;
  if exists (
    select from event_store_keys.holders h
    where (h.host, h.folder, h.epochs) = (_host, _folder, v_epochs) and h.seen_at > _now - interval '1 minute'
  ) then
    return;
  end if;
  insert into event_store_keys.holders (host, folder, epochs, seen_at) values (_host, _folder, v_epochs, _now)
  on conflict (host, folder) do update set epochs = excluded.epochs, seen_at = excluded.seen_at;
  perform event_store_private.confirm_key_epochs();
exception
  when serialization_failure or read_only_sql_transaction or lock_not_available then
    return;
end
$$;

comment on function event_store.note_holder(text, text, int[]) is
'Notes that a folder on a machine has the files of epochs of keys. MR005 an argument is null.';
revoke all on function event_store.note_holder(text, text, int[]) from public;
grant execute on function event_store.note_holder(text, text, int[]) to event_store_personal, event_store_owner;
