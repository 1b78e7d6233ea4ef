"""A broker under mixed load for hours: what grows, what is not given back, what is lost."""
