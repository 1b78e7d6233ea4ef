"""The systems beside Headrace: each is found, started, loaded and stopped in its own way."""
