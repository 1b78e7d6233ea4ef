"""The settings of a broker: kinds of values, and one table of all settings."""
