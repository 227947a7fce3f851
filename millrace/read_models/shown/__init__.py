"""Read models as people look at them."""
