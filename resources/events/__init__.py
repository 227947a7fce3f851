"""Events that users declare as Pydantic models."""
