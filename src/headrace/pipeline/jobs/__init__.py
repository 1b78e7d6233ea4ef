"""The pipeline's jobs: plain functions with typed configurations that the CLI calls."""
