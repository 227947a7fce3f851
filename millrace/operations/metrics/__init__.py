"""What monitoring asks an event store."""
