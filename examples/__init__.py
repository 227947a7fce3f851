"""Examples of what a user of Millrace writes. Nothing of the product imports them."""
