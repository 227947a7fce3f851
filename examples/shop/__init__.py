"""The example shop: its events, a simulator, its read models, its captured customers and a daily report."""
