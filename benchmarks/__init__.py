"""Side by side with Apache Kafka: `make bench`. Never imported by the product."""
