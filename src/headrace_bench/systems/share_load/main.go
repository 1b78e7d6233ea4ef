// Empties a topic through a Kafka share group with franz-go; prints one JSON object per line.
//
//	share_load BOOTSTRAP TOPIC GROUP each|hundred|confirmed
//
// It runs until it is killed, and reports every half second how many messages it has acknowledged
// since the previous report. each acknowledges every message with a separate call; the client sends
// the acknowledgements with its next fetch. hundred polls a hundred messages, all acknowledged by the
// next poll. confirmed acknowledges a message and waits for the broker's response before the next one.
// All other settings are the client's defaults.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	reportEvery = 500 * time.Millisecond
	hundred     = 100
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report prints every half second by how much count has grown.
func report(count *atomic.Int64) {
	last, at := int64(0), time.Now()
	for range time.Tick(reportEvery) {
		now, seen := time.Now(), count.Load()
		check(json.NewEncoder(os.Stdout).Encode(map[string]any{
			"messages": seen - last, "seconds": now.Sub(at).Seconds(),
		}))
		last, at = seen, now
	}
}

func main() {
	bootstrap, topic, group, kind := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ShareGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			check(results.Error())
		}),
	)
	check(err)
	var acknowledged atomic.Int64
	go report(&acknowledged)
	background := context.Background()
	most := -1
	if kind == "hundred" {
		most = hundred
	}
	for {
		fetches := client.PollRecords(background, most)
		check(fetches.Err())
		if kind == "hundred" { // by the next poll
			acknowledged.Add(int64(fetches.NumRecords()))
			continue
		}
		fetches.EachRecord(func(record *kgo.Record) {
			record.Ack(kgo.AckAccept)
			if kind == "confirmed" {
				check(client.FlushAcks(background))
			}
			acknowledged.Add(1)
		})
	}
}
