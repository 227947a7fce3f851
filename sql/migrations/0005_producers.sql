-- Exactly-once producers: how far each is, the answer to each message, and the state that changes with it.

create table event_store.producers (
  producer_id text collate "C" not null,
  partition int not null,
  epoch bigint not null,
  registered_at timestamptz not null,
  owner text not null,
  constraint producers_pkey primary key (producer_id, partition),
  constraint producers_producer_id_fits check (octet_length(producer_id) between 1 and 1024),
  constraint producers_partition_is_not_negative check (partition >= 0),
  constraint producers_epoch_is_positive check (epoch > 0)
);
comment on table event_store.producers is
'The exactly-once producers. The lock of a row serializes the transactions of one partition of a '
'producer. Only a registration changes a row: what changes with each message is in producer_progress.';
comment on column event_store.producers.producer_id is 'The producer, as it calls itself.';
comment on column event_store.producers.partition is
'The partition of the producer''s source; each has its own sequence. Not a log partition.';
comment on column event_store.producers.epoch is 'Rises with every registration, which fences out earlier instances.';
comment on column event_store.producers.registered_at is 'When the producer was registered last.';
comment on column event_store.producers.owner is
'Members of this role or of event_store_owner may register it and send as it.';

create table event_store.producer_progress (
  producer_id text collate "C" not null,
  partition int not null,
  revision bigint not null default 0,
  next_sequence bigint not null default 0,
  received bigint not null default 0,
  duplicates bigint not null default 0,
  refused bigint not null default 0,
  opened bigint not null default 0,
  committed bigint not null default 0,
  aborted bigint not null default 0,
  abandoned bigint not null default 0,
  expired bigint not null default 0,
  superseded bigint not null default 0,
  updated_at timestamptz not null,
  -- one row for each producer and partition, its newest version found first: see checkpoints
  constraint producer_progress_pkey primary key (producer_id, partition, revision),
  constraint producer_progress_producer_fkey foreign key (producer_id, partition)
    references event_store.producers (producer_id, partition),
  constraint producer_progress_next_sequence_is_not_negative check (next_sequence >= 0),
  constraint producer_progress_counters_add_up check (received = duplicates + refused + opened)
) with (fillfactor = 50);
comment on table event_store.producer_progress is
'How far each producer is, and what became of its messages. A session that changes a row holds the lock of its row in producers.';
comment on column event_store.producer_progress.producer_id is 'The producer.';
comment on column event_store.producer_progress.partition is 'The partition of the producer''s source.';
comment on column event_store.producer_progress.revision is
'Rises with every change, so that the newest version of the row is found first.';
comment on column event_store.producer_progress.next_sequence is
'The sequence that is accepted next: every lower one is a duplicate, every higher one leaves a gap.';
comment on column event_store.producer_progress.received is 'How many messages were judged.';
comment on column event_store.producer_progress.duplicates is
'How many of them were answered with the original result.';
comment on column event_store.producer_progress.refused is 'How many of them left a gap or were of another epoch.';
comment on column event_store.producer_progress.opened is 'How many of them opened a transaction.';
comment on column event_store.producer_progress.committed is 'How many transactions were committed.';
comment on column event_store.producer_progress.aborted is
'How many transactions were aborted, by their owner or by a later registration.';
comment on column event_store.producer_progress.abandoned is
'How many transactions were abandoned: their sequence counts as done, without an effect.';
comment on column event_store.producer_progress.expired is 'How many transactions were ended after their deadline.';
comment on column event_store.producer_progress.superseded is
'How many transactions came to commit after another one of the same sequence.';
comment on column event_store.producer_progress.updated_at is 'When the row last changed.';

create table event_store.producer_results (
  producer_id text collate "C" not null,
  partition int not null,
  sequence bigint not null,
  outcome text not null,
  result jsonb,
  offsets bigint[] not null,
  appended boolean[] not null,
  reason text,
  transaction_id uuid,
  ended_at timestamptz not null,
  digest bytea,
  constraint producer_results_pkey primary key (producer_id, partition, sequence),
  constraint producer_results_producer_fkey foreign key (producer_id, partition)
    references event_store.producers (producer_id, partition),
  constraint producer_results_outcome_is_known check (outcome in ('committed', 'abandoned')),
  constraint producer_results_reason_fits check (octet_length(reason) <= 10000),
  constraint producer_results_digest_fits check (octet_length(digest) between 1 and 64),
  constraint producer_results_abandoned_for_a_reason check ((outcome = 'abandoned') = (reason is not null))
);
create unique index producer_results_transaction_id_key on event_store.producer_results (transaction_id)
where transaction_id is not null;
comment on table event_store.producer_results is
'The answer to each message, until an operator purges old ones (purge_results): a duplicate gets the original answer.';
comment on column event_store.producer_results.producer_id is 'The producer.';
comment on column event_store.producer_results.partition is 'The partition of the producer''s source.';
comment on column event_store.producer_results.sequence is 'The message.';
comment on column event_store.producer_results.outcome is 'committed, or abandoned: given up for good.';
comment on column event_store.producer_results.result is 'What the producer''s work returned.';
comment on column event_store.producer_results.offsets is 'The offsets of the events that the message became.';
comment on column event_store.producer_results.appended is
'Which of them were new: an event that was stored before has false.';
comment on column event_store.producer_results.reason is 'Why it was abandoned.';
comment on column event_store.producer_results.transaction_id is
'Its transaction; null where one call did it all.';
comment on column event_store.producer_results.ended_at is 'When it was committed or abandoned.';
comment on column event_store.producer_results.digest is
'A digest of the message, as its sender computed it; null if it sent none.';

create table event_store.producer_state (
  producer_id text collate "C" not null,
  partition int not null,
  key text collate "C" not null,
  value jsonb not null,
  sequence bigint not null,
  -- one row for each key, its newest version found first: see checkpoints
  constraint producer_state_pkey primary key (producer_id, partition, key, sequence),
  constraint producer_state_producer_fkey foreign key (producer_id, partition)
    references event_store.producers (producer_id, partition),
  constraint producer_state_key_fits check (octet_length(key) between 1 and 1024)
);
comment on table event_store.producer_state is
'What a producer keeps beside its events, such as a running total. It changes only with the sequence.';
comment on column event_store.producer_state.producer_id is 'The producer.';
comment on column event_store.producer_state.partition is 'The partition of the producer''s source.';
comment on column event_store.producer_state.key is 'The name of the value.';
comment on column event_store.producer_state.value is 'The value; a JSON null is one, too.';
comment on column event_store.producer_state.sequence is 'The message that set it.';

-- Unlogged: a crash of the server empties both tables at once. A transaction that was open then is unknown, and its
-- producer begins it again.
create unlogged table event_store.transactions (
  -- a number would be given out again after such a crash
  transaction_id uuid not null default gen_random_uuid(),
  producer_id text collate "C" not null,
  partition int not null,
  epoch bigint not null,
  sequence bigint not null,
  state text not null default 'open',
  begun_at timestamptz not null,
  expires_at timestamptz,
  ended_at timestamptz,
  digest bytea,
  constraint transactions_pkey primary key (transaction_id),
  constraint transactions_producer_fkey foreign key (producer_id, partition)
    references event_store.producers (producer_id, partition),
  constraint transactions_state_is_known check (state in ('open', 'aborted', 'expired', 'superseded')),
  constraint transactions_open_until_they_end check (
    (state = 'open') = (ended_at is null) and (state = 'open') = (expires_at is not null)
  )
) with (fillfactor = 70);
-- no index has the state: without statistics the planner would rate it as good as the right one
create index transactions_producer_idx on event_store.transactions (producer_id, partition);
create index transactions_expires_at_idx on event_store.transactions (expires_at);
create index transactions_ended_at_idx on event_store.transactions (ended_at);
comment on table event_store.transactions is
'The transactions that are open, and for a while those that ended without a result. One with a result is in '
'producer_results only.';
comment on column event_store.transactions.transaction_id is 'Names the transaction.';
comment on column event_store.transactions.producer_id is 'The producer.';
comment on column event_store.transactions.partition is 'The partition of the producer''s source.';
comment on column event_store.transactions.epoch is 'The epoch in which it was begun.';
comment on column event_store.transactions.sequence is 'The message.';
comment on column event_store.transactions.state is
'open, or how it ended without an effect: aborted, expired, or superseded by another transaction of the same message.';
comment on column event_store.transactions.begun_at is 'When it was begun.';
comment on column event_store.transactions.expires_at is 'The deadline of its commit; null once it has ended.';
comment on column event_store.transactions.ended_at is 'When it ended; null while it is open.';
comment on column event_store.transactions.digest is
'A digest of the message, as its sender computed it; null if it sent none.';

create unlogged table event_store.staged_changes (
  transaction_id uuid not null,
  ordinal int not null,
  key text collate "C",
  value jsonb,
  events jsonb,
  constraint staged_changes_pkey primary key (transaction_id, ordinal),
  constraint staged_changes_transaction_fkey foreign key (transaction_id)
    references event_store.transactions (transaction_id) on delete cascade,
  constraint staged_changes_are_of_one_kind check ((key is null) = (events is not null) and (events is null or value is null)),
  constraint staged_changes_key_fits check (octet_length(key) between 1 and 1024)
);
comment on table event_store.staged_changes is
'The changes of state and the events of an open transaction. They take effect at its commit.';
comment on column event_store.staged_changes.transaction_id is 'The transaction.';
comment on column event_store.staged_changes.ordinal is 'The order of the changes, from 1.';
comment on column event_store.staged_changes.key is 'The name of the value that changes; null for events.';
comment on column event_store.staged_changes.value is 'The new value; null where it is removed.';
comment on column event_store.staged_changes.events is 'Events as append_events takes them.';
