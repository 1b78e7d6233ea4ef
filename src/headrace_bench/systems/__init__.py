"""The compared systems: how each is found, started, loaded and stopped."""
