"""Java and jars, needed by Spark, the development cluster, security tests and benchmarks."""
