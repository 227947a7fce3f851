"""The example shop: its events, a simulator, its read models, services, captured customers and a daily report."""
