// What every version of sarama can do.
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

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type reader struct {
	count int
	done  context.CancelFunc
}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	i := 0
	for message := range claim.Messages() {
		if string(message.Value) != strconv.Itoa(i) || string(message.Headers[0].Value) != string(message.Key) {
			panic(fmt.Sprintf("record %d is %v", i, message))
		}
		session.MarkMessage(message, "")
		if i++; i == r.count {
			fmt.Println("ok")
			r.done()
			return nil
		}
	}
	return nil
}

func main() {
	bootstrap, topic := []string{os.Args[1]}, os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	config := sarama.NewConfig()
	config.Version = sarama.V2_0_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	check(err)
	for i := 0; i < count; i++ {
		text := []byte(strconv.Itoa(i))
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Key: sarama.ByteEncoder(text), Value: sarama.ByteEncoder(text),
			Headers: []sarama.RecordHeader{{Key: []byte("number"), Value: text}}})
		check(err)
	}
	check(producer.Close())

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	group, err := sarama.NewConsumerGroup(bootstrap, topic, config)
	check(err)
	for ctx.Err() == nil {
		err := group.Consume(ctx, []string{topic}, reader{count, cancel})
		if ctx.Err() == nil {
			check(err)
		}
	}
	check(group.Close())
}
