"""Read models: what they are declared to be, what is stored of them, how they are built, shown, and fail."""
