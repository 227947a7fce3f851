"""Looks at a store for faults: each is a promise that does not hold."""
