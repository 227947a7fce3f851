-- A producer of event_store_writer serves every writer. The members of its role may also read its state and give it to
-- another role. audit_log has the first registration and each change of the owner. v_initial_sequence is for a source
-- that does not begin at 0. It counts once: the store knows the position of a known producer.
-- Example: select epoch, next_sequence from register_producer('orders.csv')
create or replace function event_store.register_producer(
  v_producer_id text,
  v_partition int default 0,
  v_owner text default null,
  v_initial_sequence bigint default 0
)
returns table (
  producer_id text,
  partition int,
  epoch bigint,
  next_sequence bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _before text;
  _producer event_store.producers;
begin
  perform event_store_private.require_producer_id(v_producer_id, v_partition);
  if (v_initial_sequence between 0 and 9223372036854775806) is not true then
    perform event_store_private.refuse_request(
      format('v_initial_sequence is %s', coalesce(v_initial_sequence::text, 'null')),
      'Pass the number of the first message, from 0 to 9223372036854775806.'
    );
  end if;
  if v_owner is not null and to_regrole(quote_ident(v_owner)) is null then
    perform event_store_private.refuse_request(format('there is no role %I', v_owner), 'Name a role that logins are members of.');
  end if;
  if not event_store_private.may_use(v_owner) then
    perform event_store_private.refuse_foreign_producer(v_producer_id, v_partition, v_owner);
  end if;
  -- Locked: of two concurrent first registrations, the second finds the first one's owner.
  select p.owner into _before
  from event_store.producers p
  where p.producer_id = v_producer_id and p.partition = v_partition
  for no key update;
  insert into event_store.producers as p (producer_id, partition, epoch, registered_at, owner)
  values (
    v_producer_id, v_partition, 1, _now,
    coalesce(
      v_owner, case when event_store_private.is_operator() then 'event_store_writer' else event_store_private.caller_role() end
    )
  )
  on conflict on constraint producers_pkey
  do update set epoch = p.epoch + 1, registered_at = _now, owner = coalesce(v_owner, p.owner)
    where event_store_private.may_use(p.owner)
  returning p.* into _producer;
  if not found then
    perform event_store_private.require_producer(v_producer_id, v_partition);
  elsif _producer.owner is distinct from _before then
    perform event_store_private.audit(
      'register_producer', null, null,
      jsonb_build_object('producer_id', v_producer_id, 'partition', v_partition, 'owner', _producer.owner, 'owner_before', _before)
    );
  end if;
  if _producer.epoch = 1 then
    perform event_store_private.bound_idle_transaction();
    insert into event_store.producer_progress (producer_id, partition, next_sequence, updated_at)
    values (v_producer_id, v_partition, v_initial_sequence, _now);
  end if;
  -- A caller in a transaction keeps it until its own call is fenced: a wait for it could deadlock.
  perform event_store_private.end_transactions(
    v_producer_id,
    v_partition,
    array(
      select t.transaction_id
      from event_store.transactions t
      where t.producer_id = v_producer_id and t.partition = v_partition and t.state = 'open' and t.epoch < _producer.epoch
      for update skip locked
    ),
    'aborted'
  );
  -- A snapshot older than a later message fails here (40001): the lock of the row of producers does not show it.
  perform from event_store.producer_progress g
  where g.ctid = (select n.version from event_store_private.progress_of(v_producer_id, v_partition) n)
  for no key update;
  return query select _producer.producer_id, _producer.partition, _producer.epoch, g.next_sequence
  from event_store_private.progress_of(v_producer_id, v_partition) g;
end
$$;

comment on function event_store.register_producer(text, int, text, bigint) is
'Registers an instance of producer v_producer_id for v_partition of its source and returns its epoch and its next '
'sequence; a new producer begins with v_initial_sequence. Members of role v_owner may register it and send as it: by '
'default the login, or event_store_writer if the login is a member of event_store_owner. Each call raises the epoch, '
'aborts open transactions of earlier instances and refuses what they send. MR005 an argument is null, empty or out of '
'range, or v_owner is no role; MR045 it is another role''s, or the caller is no member of v_owner.';
revoke all on function event_store.register_producer(text, int, text, bigint) from public;
grant execute on function event_store.register_producer(text, int, text, bigint) to event_store_writer, event_store_owner;
