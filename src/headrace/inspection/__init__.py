"""Reads the contents of a data folder, without a broker and without changing it."""
