"""What talks to Postgres, to Spark and to HTTP, a room per subject. Dagster is known to two files, marked with D.

The three ideas, and the files that are each:

    1  One writer gives committed events dense positions,       sql/functions/log/sequence_events.sql
       so that a reader meets no gap that fills later.          sequencer.py
    2  A view's rows and its checkpoint are one transaction:    sql/functions/bulk/commit_batch.sql
       what is consumed is consumed exactly once.               consumption/commit.py
    3  Columns that merge: a batch of new events is added to    read_models/declared/columns.py
       the rows, and gives what a rebuild of all events gives.  read_models/stored/merge.py

The rooms, from top to bottom; each knows only those below it, which tests/test_architecture.py holds:

    consumption         claims, builds in Spark and commits: drains and rebuilds of read models
    subscriptions       consumers that are no read models: events pushed to a URL
    alerts              a message when something is wrong, and one when it is over
    commands            deciders, and what a command leads to
    read_models         what a read model is: declaration, columns, plans, tables, versions
    backup              all of a store as of one moment, and back
    metrics             what monitoring asks
    archive             the log in files: writing, reading, purging what is archived
    capture             changes of other databases as events
    importer            event logs in files as events
    reports.py          a day's rows in place of what was there
    sequencer.py        the loop of the one writer
    consumers           functions of users that are called for each event of a view
    producers           messages that are stored once, however often they are sent
    spark               sessions, and the code that they bring along (resource.py: D)
    postgres            which database, the embedded server, psql (resource.py: D)
    event_store         the client of the SQL functions, its rows, its migrations
    event_log_source    the log as a source of Spark; imports nothing of ours, so that it can be taken away
    connecting.py       connections that notice when nobody answers
    errors.py           what is refused, as types
    settings.py         what a deployment can set
    processes.py        children that are waited for
    redact.py           texts without passwords and without control characters
    signing.py          how messages to receivers are signed
    times.py            which texts are which moment
    user_code.py        whether a call of a user's function runs its body

In a room, `store.py` calls the SQL functions of the folder with its name, and `declaration.py` is what a user writes.
"""
