"""The commands that only read, `millrace show …`: a file each."""
