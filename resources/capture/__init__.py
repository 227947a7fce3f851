"""Change capture: the changes of other databases' tables become events."""
