"""Streams and read models over HTTP, for browsers and other languages: Durable Streams 1.0, the reading half."""
