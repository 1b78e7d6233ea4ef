"""The jobs of the pipeline: plain functions with typed configs that the CLI calls."""
