"""What tests of docs/incidents.md share."""
