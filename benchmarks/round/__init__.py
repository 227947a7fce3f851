"""Many views on one machine: what they cost, and how late their rows are."""
