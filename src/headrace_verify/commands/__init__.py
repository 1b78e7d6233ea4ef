"""The commands of `headrace verify`."""
