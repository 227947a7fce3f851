"""Events that users declare as Pydantic models, and how data of one version become data of the next."""
