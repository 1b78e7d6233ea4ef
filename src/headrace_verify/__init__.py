"""`headrace verify`: attacks on Headrace itself, for anyone's machine and disks."""
