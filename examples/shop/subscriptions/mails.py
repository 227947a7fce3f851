"""The mails to customers: one for each order that the shop takes on, and never two.

    millrace run handlers millrace.examples.shop.subscriptions.mails

The handler has the connection whose transaction also has the acknowledgement. So a mail is written exactly once, even
if a process is killed; a mail program sends the mails in the table.
"""

import psycopg

from millrace import Delivery, subscription

TABLE = """
create table if not exists mails (
  event_id uuid not null,
  order_id text not null,
  subject text not null,
  body text not null,
  written_at timestamptz not null default now(),
  sent_at timestamptz
)
"""


def make_mails(connection: psycopg.Connection) -> None:
    """Make the table of mails, if it is missing."""
    connection.execute(TABLE)


@subscription(view="mails", deciders=["order"], events=["order_confirmed"])
def write_mail(event: Delivery, connection: psycopg.Connection) -> None:
    """Write the mail for a confirmed order."""
    connection.execute(
        "insert into mails (event_id, order_id, subject, body) values (%s, %s, %s, %s)",
        (
            event.event_id,
            event.decider_id,
            f"Your order {event.decider_id}",
            f"We took it on. It comes to {event.data['total']:.2f} euros.",
        ),
    )
