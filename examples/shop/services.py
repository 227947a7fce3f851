"""The shop's own services of `millrace up`: `simulate` appends orders, `unpaid` cancels some, `crm` changes customers.

The first two append to the embedded event store only: events cannot be removed. The customers are in a separate
database, and only beside the embedded event store.
"""

import os

from millrace.examples.shop.customers import DATABASE, VARIABLE, make_crm
from millrace.ops import Service, Surroundings

# values of MILLRACE_SIMULATE that turn the simulation off
OFF = {"0", "false", "no", "off"}


def services(here: Surroundings) -> list[Service]:
    """List the services; none where the event store, or the customer database, is not ours to write into."""
    if not here.embedded:
        return []
    makes_crm = not os.environ.get(VARIABLE)
    if makes_crm:
        # for every service, so that the capture finds it
        here.env[VARIABLE] = here.make_database(DATABASE)
        make_crm(here.env[VARIABLE])
    if os.environ.get("MILLRACE_SIMULATE", "").lower() in OFF:
        return []
    return [
        here.run("unpaid", "millrace", "run", "handlers", "millrace.examples.shop.subscriptions.unpaid_orders"),
        here.run("simulate", "millrace", "dev", "simulate"),
        *([here.run("crm", "millrace", "dev", "simulate-crm")] if makes_crm else []),
    ]
