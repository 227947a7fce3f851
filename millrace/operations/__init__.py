"""What an operator asks of a store: its faults, its figures for monitoring, whether its promises hold."""
