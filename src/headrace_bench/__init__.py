"""Benchmarks of Headrace and other systems, with their own load tools. Only the CLI imports
this."""
