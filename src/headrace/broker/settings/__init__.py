"""The settings of a broker: value types, and one table of all settings."""
