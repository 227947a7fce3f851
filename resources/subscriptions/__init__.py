"""Delivering events to services."""
