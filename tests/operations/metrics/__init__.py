"""What monitoring asks."""
