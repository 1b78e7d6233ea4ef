"""Which broker should serve which partition."""
