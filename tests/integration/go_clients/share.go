package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// delivery is what is printed of each record that was received.
type delivery struct {
	Value     string `json:"value"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Count     int32  `json:"count"`
}

// share consumes a topic in a share group until it was silent for a while, and does with each record
// what its value asks for: "accept", "reject", "renew" (and accept after that), "release" (and
// accept when it comes again), "fail" (release, however often it comes), "hold" (end without an
// acknowledgement; accept when it comes again). It fails if the broker refuses an acknowledgement.
func share(arguments []string) error {
	flags := flag.NewFlagSet("share", flag.ExitOnError)
	bootstrap := flags.String("bootstrap", "", "host:port")
	topic := flags.String("topic", "", "topic to read")
	group := flags.String("group", "", "share group")
	silenceMs := flags.Int("silence-ms", 3_000, "end after the topic was silent for so long")
	_ = flags.Parse(arguments)
	var refused atomic.Pointer[error]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(*bootstrap),
		kgo.ShareGroup(*group),
		kgo.ConsumeTopics(*topic),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				refused.Store(&err)
			}
		}),
	)
	if err != nil {
		return err
	}
	last, isHolding := time.Now(), false
	for !isHolding && time.Since(last) < time.Duration(*silenceMs)*time.Millisecond {
		poll, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		fetches := client.PollFetches(poll)
		cancel()
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return failed.Err
			}
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		last = time.Now()
		for _, record := range fetches.Records() {
			found := delivery{string(record.Value), record.Partition, record.Offset, record.DeliveryCount()}
			if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
				return err
			}
			holds, err := settle(client, record)
			if err != nil {
				return err
			}
			isHolding = isHolding || holds
		}
		if err := client.FlushAcks(context.Background()); err != nil {
			return err
		}
	}
	if err := client.LeaveGroupContext(context.Background()); err != nil {
		return err
	}
	client.Close()
	if failed := refused.Load(); failed != nil {
		return *failed
	}
	return nil
}

// settle does what the record's value asks for; whether the record is held.
func settle(client *kgo.Client, record *kgo.Record) (bool, error) {
	isFirst := record.DeliveryCount() == 1
	switch value := string(record.Value); {
	case value == "reject":
		record.Ack(kgo.AckReject)
	case value == "fail" || value == "release" && isFirst:
		record.Ack(kgo.AckRelease)
	case value == "hold" && isFirst:
		return true, nil
	case value == "renew":
		record.Ack(kgo.AckRenew)
		if err := client.FlushAcks(context.Background()); err != nil {
			return false, err
		}
		record.Ack(kgo.AckAccept)
	default:
		record.Ack(kgo.AckAccept)
	}
	return false, nil
}
