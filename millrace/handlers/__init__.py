"""Functions, and services behind a URL, that are called for each event of a view."""
