"""The UI in a process of its own, and a browser that visits it or a foreign page."""
