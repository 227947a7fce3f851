"""The command `millrace new`, and the templates of the repository that it makes."""
