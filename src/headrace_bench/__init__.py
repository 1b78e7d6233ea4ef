"""Benchmarks: Headrace beside other systems, by outside tools. Nothing imports it but the CLI."""
