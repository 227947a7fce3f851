"""What tests of views share: sessions, models of what must hold, receivers."""
