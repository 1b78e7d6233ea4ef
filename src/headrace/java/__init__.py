"""Java and jars: what Spark, the development cluster, attacks and benchmarks need of them."""
