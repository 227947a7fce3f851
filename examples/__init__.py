"""Examples of code that a user of Millrace writes; the product imports none of it."""
