"""What a read model is declared to be: its keys, columns and functions, and what they mean."""
