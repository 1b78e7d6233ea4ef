// What every version of sarama can do.
//
//	family HOST:PORT TOPIC COUNT [MECHANISM CA]
//
// It writes COUNT records to the existing topic as an idempotent producer, and reads them in a group:
// over TLS where a mechanism of SASL is named, as SASL_USER by SASL_PASSWORD.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
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

// conversation is the SCRAM that sarama leaves to its users.
type conversation struct {
	hash  scram.HashGeneratorFcn
	steps *scram.ClientConversation
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.steps = client.NewConversation()
	}
	return err
}

func (c *conversation) Step(challenge string) (string, error) { return c.steps.Step(challenge) }

func (c *conversation) Done() bool { return c.steps.Done() }

// login is how a client reaches a listener that is closed to others.
func login(config *sarama.Config, arguments []string) {
	if len(arguments) == 0 {
		return
	}
	ca, err := os.ReadFile(arguments[1])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: pool}
	config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLMechanism(arguments[0])
	config.Net.SASL.User, config.Net.SASL.Password = os.Getenv("SASL_USER"), os.Getenv("SASL_PASSWORD")
	hash := map[string]scram.HashGeneratorFcn{
		"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512,
	}[arguments[0]]
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
		return &conversation{hash: hash}
	}
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
	login(config, os.Args[4:])
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
