"""What reads the README and the pages of docs/, and follows their blocks."""
