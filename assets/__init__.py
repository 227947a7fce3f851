"""The asset graph, one file per stage. Bodies are short: they call functions of `resources` that tests can call."""
