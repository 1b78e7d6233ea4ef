// What every version of librdkafka can do, through confluent-kafka-go, which brings one with it.
//
//	family HOST:PORT TOPIC COUNT
//
// It makes the topic, writes COUNT records as an idempotent producer, and reads them in a group.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	admin, err := kafka.NewAdminClient(&kafka.ConfigMap{"bootstrap.servers": bootstrap})
	check(err)
	made, err := admin.CreateTopics(context.Background(),
		[]kafka.TopicSpecification{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}})
	check(err)
	if made[0].Error.Code() != kafka.ErrNoError {
		panic(made[0].Error)
	}
	admin.Close()

	producer, err := kafka.NewProducer(&kafka.ConfigMap{
		"bootstrap.servers": bootstrap, "enable.idempotence": true, "compression.type": "lz4"})
	check(err)
	for i := 0; i < count; i++ {
		text := []byte(strconv.Itoa(i))
		check(producer.Produce(&kafka.Message{
			TopicPartition: kafka.TopicPartition{Topic: &topic, Partition: 0},
			Key:            text, Value: text, Headers: []kafka.Header{{Key: "number", Value: text}},
		}, nil))
	}
	for i := 0; i < count; {
		if sent, isMessage := (<-producer.Events()).(*kafka.Message); isMessage {
			check(sent.TopicPartition.Error)
			i++
		}
	}
	producer.Close()

	consumer, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
		"enable.auto.commit": false})
	check(err)
	check(consumer.SubscribeTopics([]string{topic}, nil))
	for i := 0; i < count; i++ {
		message, err := consumer.ReadMessage(60 * time.Second)
		check(err)
		if string(message.Value) != strconv.Itoa(i) || string(message.Headers[0].Value) != string(message.Key) {
			panic(fmt.Sprintf("record %d is %v", i, message))
		}
	}
	_, err = consumer.Commit()
	check(err)
	check(consumer.Close())
	_, version := kafka.LibraryVersion()
	fmt.Println(version, "ok")
}
