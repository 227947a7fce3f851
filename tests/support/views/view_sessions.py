"""The sessions in a view's random lives: an operator, a writer, one with an endless transaction, consumers."""

from collections.abc import Iterator

import psycopg

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, ids_of_one_partition, register_orders
from tests.support.views.view_model import PARTITIONS, Consumer, Name


class Sessions:
    """One database and its sessions, emptied before each life."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.operator = register_orders(PlatformStore(self.connection()))
        self.operator.connection.execute("delete from event_store.partitions where partition >= %s", (PARTITIONS,))
        self.writer = PlatformStore(self.connection())
        self.endless = PlatformStore(self.connection())
        self.consumers = [self.consumer(number) for number in range(3)]
        ids = [
            id_
            for p, number in ((0, 2), (1, 1), (2, 1))
            for id_ in ids_of_one_partition(self.operator.connection, number, p)
        ]
        # two deciders share an id; the last stream has a partition of its own
        self.streams: list[Name] = [*(("order", id_) for id_ in ids), ("invoice", ids[0]), ("invoice", ids[2])]

    def connection(self) -> psycopg.Connection:
        connection = self._connect()
        # no session may wait for another one here; a call that waits fails the test
        connection.execute(
            "set synchronous_commit = off; set lock_timeout = '3s'; set event_store.clock = '2030-01-01 00:00:00+00'"
        )
        return connection

    def consumer(self, number: int) -> Consumer:
        return Consumer(f"consumer {number}", PlatformStore(self.connection()))

    def everyone(self) -> Iterator[PlatformStore]:
        yield from (self.operator, self.writer, self.endless, *(consumer.store for consumer in self.consumers))

    def begin_life(self) -> None:
        for store in self.everyone():
            store.connection.execute("rollback" if store.connection.info.transaction_status else "select")
        for consumer in self.consumers:
            consumer.transaction = None
        # as a replica: neither the guard of events nor a foreign key is checked
        self.operator.connection.execute(
            """
            begin;
            set local session_replication_role = replica;
            delete from event_store.events;
            delete from event_store.event_log;
            delete from event_store.purged_streams;
            delete from event_store.stream_locks;
            delete from event_store.checkpoints;
            delete from event_store.dispatches;
            delete from event_store.views;
            delete from event_store.audit_log;
            update event_store.log_partitions set earliest_position = 0, archived_position = 0, purged_position = 0;
            update event_store.sequencer set sequenced_at = '-infinity';
            select setval('event_store.events_offset_seq', 1, false), setval('event_store.lease_token_seq', 1, false);
            commit
            """
        )
