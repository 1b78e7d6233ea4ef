"""Data of every released version opens with this one, and is right."""
