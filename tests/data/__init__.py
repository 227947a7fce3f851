"""What tests compare with and start from, and the program that writes it (`generate.py`)."""
