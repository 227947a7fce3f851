"""The subscriptions of the example shop, one file each."""
