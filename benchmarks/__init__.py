"""What only a checkout can measure, for its servers come from the tests. See headrace_bench."""
