"""Delayed delivery and half messages: what a partition keeps back until its time has come."""
