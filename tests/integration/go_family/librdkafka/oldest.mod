module headrace.test/family

go 1.21

require github.com/confluentinc/confluent-kafka-go v1.8.2
