"""What tests that build with Spark share: read models, drains, places where Spark runs."""
