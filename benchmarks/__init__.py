"""Measurements, each a program of its own. They print numbers of this machine, now; nothing here is a test."""
