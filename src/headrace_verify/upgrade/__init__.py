"""Verifies that data of every released version opens with this one, and is correct."""
