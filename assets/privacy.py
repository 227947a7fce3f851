"""The keys of people as an asset: materializing it reports how many live, and where their files are."""

import dagster as dg

from millrace.assets import OWNERS, Group
from millrace.event_store.key_rotation import KeyStore
from millrace.resources.postgres import PostgresResource

KEY = dg.AssetKey(["privacy", "subjects"])


@dg.asset(
    key=KEY,
    deps=[dg.AssetKey(["event_store", "events"])],
    group_name=Group.EVENT_STORE,
    kinds={"postgres", "table"},
    owners=OWNERS,
    description="The people whose data events hold sealed, a key for each: to forget a person destroys the key.",
)
def subjects(postgres: PostgresResource) -> dg.MaterializeResult[None]:
    """Count the keys."""
    with postgres.connect() as connection:
        epochs, holders = KeyStore(connection).key_counts(), KeyStore(connection).key_holders()
    return dg.MaterializeResult(
        metadata={
            "living": sum(each.living for each in epochs),
            "forgotten": sum(each.forgotten for each in epochs),
            "epochs": len(epochs),
            "holders": [str(each) for each in holders],
        }
    )
