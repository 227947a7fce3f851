"""Examples of what a user of Millrace writes; nothing of the product imports them."""
