"""The commands that only look, `millrace show …`: a file each."""
