"""What `millrace new` does, and the files of the repository that it makes."""
