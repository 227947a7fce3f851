"""What tests of change capture share."""
