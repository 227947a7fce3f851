-- A client proposes a key for each subject; a subject that has one keeps it. The server never sees a subject, nor a key
-- that is not wrapped. A forgotten subject has a key_id, and no key.
-- Races: of two clients that propose a key for one subject the second waits for the first, and gets its key.
-- Example: select * from subject_keys('customer', 1, '9f86d081…', array[mac], array[key_id], array[wrapped])
create or replace function event_store.subject_keys(
  v_decider text,
  v_epoch int,
  v_fingerprint text,
  v_macs bytea[],
  v_key_ids text[],
  v_wrapped bytea[]
)
returns table (
  subject_mac bytea,
  key_id text,
  epoch int,
  wrapped bytea,
  settled boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  if not exists (select from event_store.deciders d where d.decider = v_decider) then
    perform event_store_private.refuse_unregistered_event(v_decider, '', 1);
  end if;
  perform event_store_private.refuse_foreign_decider(v_decider, d.owner)
  from event_store.deciders d
  where d.decider = v_decider and d.owner is not null and not event_store_private.may_use(d.owner)
  limit 1;
  perform event_store_private.require_key_epoch(v_epoch, v_fingerprint);
  if exists (
    select
    from unnest(v_macs, v_key_ids, v_wrapped) n(mac, key_id, wrapped)
    where num_nulls(n.mac, n.key_id, n.wrapped) > 0 or n.key_id !~ '^[A-Za-z0-9_-]{22}$'
  ) then
    perform event_store_private.refuse_request(
      'a subject has no key, or a key has no fit name', 'State a key for each subject, and as its name 16 random bytes as base64url.'
    );
  end if;
  insert into event_store_keys.subject_keys as k (key_id, subject_mac, epoch, wrapped, created_at)
  select n.key_id, n.mac, v_epoch, n.wrapped, event_store_private.clock()
  from unnest(v_macs, v_key_ids, v_wrapped) n(mac, key_id, wrapped)
  where not exists (select from event_store_keys.subject_keys o where o.subject_mac = n.mac)
  order by n.mac -- so that two clients wait for each other in one order
  on conflict on constraint subject_keys_subject_key do nothing;
  if exists (select from unnest(v_macs) m(mac) where not exists (select from event_store_keys.subject_keys k where k.subject_mac = m.mac)) then
    raise exception 'a key was made by a transaction that this one cannot see'
      using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
  end if;
  return query
  select k.subject_mac, k.key_id, k.epoch, k.wrapped, k.transaction_id is distinct from pg_current_xact_id_if_assigned()
  from event_store_keys.subject_keys k
  where k.subject_mac = any (v_macs);
end
$$;

comment on function event_store.subject_keys(text, int, text, bytea[], text[], bytea[]) is
'Returns the keys of subjects, and keeps those that are proposed for subjects without one. wrapped is null for a forgotten '
'subject, settled false for a key that this transaction made. MR004 the decider is not registered; MR005 the store '
'has no epoch of keys, or an array does not fit; MR046 the decider belongs to another role; MR055 the keys are of another epoch.';
revoke all on function event_store.subject_keys(text, int, text, bytea[], text[], bytea[]) from public;
grant execute on function event_store.subject_keys(text, int, text, bytea[], text[], bytea[]) to event_store_personal, event_store_owner;
