"""Delayed delivery and half messages of a partition."""
