// What every version of franz-go can do.
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
	"net"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// login is how a client reaches a listener that is closed to others.
func login(arguments []string) []kgo.Opt {
	if len(arguments) == 0 {
		return nil
	}
	user, password := os.Getenv("SASL_USER"), os.Getenv("SASL_PASSWORD")
	mechanism := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": scram.Auth{User: user, Pass: password}.AsSha256Mechanism(),
		"SCRAM-SHA-512": scram.Auth{User: user, Pass: password}.AsSha512Mechanism(),
	}[arguments[0]]
	ca, err := os.ReadFile(arguments[1])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	dial := func(ctx context.Context, network, host string) (net.Conn, error) {
		name, _, err := net.SplitHostPort(host)
		check(err)
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: name}}
		return dialer.DialContext(ctx, network, host)
	}
	return []kgo.Opt{kgo.Dialer(dial), kgo.SASL(mechanism)}
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	entry := append(login(os.Args[4:]), kgo.SeedBrokers(bootstrap))
	producer, err := kgo.NewClient(entry...)
	check(err)
	for i := 0; i < count; i++ {
		text := []byte(strconv.Itoa(i))
		record := &kgo.Record{Topic: topic, Key: text, Value: text,
			Headers: []kgo.RecordHeader{{Key: "number", Value: text}}}
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) { check(err) })
	}
	check(producer.Flush(ctx))
	producer.Close()

	consumer, err := kgo.NewClient(append(entry, kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
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
