"""Read models as people see them."""
