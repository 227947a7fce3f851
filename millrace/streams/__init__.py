"""Reading streams, views and read models over HTTP."""
