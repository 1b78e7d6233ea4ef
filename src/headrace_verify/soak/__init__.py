"""Runs a broker under mixed load for hours, and checks for growth, leaks and lost records."""
