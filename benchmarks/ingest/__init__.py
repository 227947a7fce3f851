"""Events from outside: exactly-once messages beside plain appends, captured changes beside a bare reader of the log."""
