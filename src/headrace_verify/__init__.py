"""`headrace verify`: attacks on Headrace itself, on the user's own machine and disks."""
