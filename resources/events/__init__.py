"""Events: how data of one version become data of the next."""
