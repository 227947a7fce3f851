"""Measurements, each a program of its own, that print numbers of this machine, now; nothing here is a test."""
