"""Attacks by crashes and damage: kill -9, power loss, torn files, flipped bits, failing disks."""
