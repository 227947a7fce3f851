"""What services are built with: consumers, pushes, commands, waiting for what is new."""
