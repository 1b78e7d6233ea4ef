// What every version of franz-go can do.
//
//	family HOST:PORT TOPIC COUNT
//
// It writes COUNT records to the existing topic as an idempotent producer, and reads them in a group.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
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
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	check(err)
	for i := 0; i < count; i++ {
		text := []byte(strconv.Itoa(i))
		record := &kgo.Record{Topic: topic, Key: text, Value: text,
			Headers: []kgo.RecordHeader{{Key: "number", Value: text}}}
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) { check(err) })
	}
	check(producer.Flush(ctx))
	producer.Close()

	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	for i := 0; i < count; {
		fetches := consumer.PollFetches(ctx)
		for _, each := range fetches.Errors() {
			check(each.Err)
		}
		for _, record := range fetches.Records() {
			if string(record.Value) != strconv.Itoa(i) || string(record.Headers[0].Value) != string(record.Key) {
				panic(fmt.Sprintf("record %d is %v", i, record))
			}
			i++
		}
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	consumer.Close()
	fmt.Println("ok")
}
