"""Calls beside something that holds old row versions back."""
