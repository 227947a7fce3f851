"""Helpers for tests of other accounts of this machine: a program under one, and its access to a running Millrace."""
