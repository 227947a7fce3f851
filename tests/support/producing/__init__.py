"""What tests of producers share."""
