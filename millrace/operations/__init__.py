"""What an operator asks of a store: what is wrong, figures for monitoring, whether its promises hold."""
