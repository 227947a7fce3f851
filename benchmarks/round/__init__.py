"""Many views on one machine: their cost, and the latency of their rows."""
