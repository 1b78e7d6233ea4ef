// Loads a JetStream stream through NATS's own Go client; prints one JSON object per line.
//
//	nats_load URL produce STREAM BYTES
//	nats_load URL consume STREAM MESSAGES
//	nats_load URL empty STREAM each|hundred|confirmed
//	nats_load URL latency STREAM PER_SECOND SECONDS WARMUP_SECONDS
//	nats_load URL drop STREAM
//
// produce publishes asynchronously, with a fixed number unacknowledged; consume reads with an ordered
// consumer, again from the beginning after MESSAGES. Both run until they are killed, and report every
// half second how many messages were acknowledged, or read, since the previous report. empty receives
// through a durable pull consumer and acknowledges each message, every hundredth with AckAll, or
// each with DoubleAck, one after the other. latency sends on one connection and receives on another; a message's time begins when
// it was due if the sender was held up, and when it was sent if the sender merely woke late.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pendingMax    = 1000
	latencyBytes  = 100
	unfinishedMax = 5000
	lateMax       = 20 * time.Second
	reportEvery   = 500 * time.Millisecond
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(index int) int {
	value, err := strconv.Atoi(os.Args[index])
	check(err)
	return value
}

func connect() (*nats.Conn, nats.JetStreamContext) {
	connection, err := nats.Connect(os.Args[1])
	check(err)
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(pendingMax))
	check(err)
	return connection, stream
}

func tell(figures map[string]any) {
	check(json.NewEncoder(os.Stdout).Encode(figures))
}

func create(stream nats.JetStreamContext, name string) {
	_, err := stream.AddStream(&nats.StreamConfig{
		Name: name, Subjects: []string{name}, Storage: nats.FileStorage,
	})
	check(err)
}

func waitAcknowledged(stream nats.JetStreamContext) {
	select {
	case <-stream.PublishAsyncComplete():
	case <-time.After(2 * time.Minute):
		check(fmt.Errorf("not acknowledged in two minutes"))
	}
}

// report prints every half second by how much count has grown.
func report(count func() int64) {
	last, at := int64(0), time.Now()
	for range time.Tick(reportEvery) {
		now, seen := time.Now(), count()
		tell(map[string]any{"messages": seen - last, "seconds": now.Sub(at).Seconds()})
		last, at = seen, now
	}
}

func produce(name string) {
	_, stream := connect()
	value := make([]byte, number(4))
	create(stream, name)
	var published atomic.Int64
	go report(func() int64 {
		sent := published.Load()
		return max(0, sent-int64(stream.PublishAsyncPending()))
	})
	for {
		_, err := stream.PublishAsync(name, value, nats.StallWait(time.Minute))
		check(err)
		published.Add(1)
	}
}

func consume(name string) {
	_, stream := connect()
	messages := int64(number(4))
	var read atomic.Int64
	go report(read.Load)
	for {
		seen := int64(0)
		done := make(chan struct{})
		subscription, err := stream.Subscribe(name, func(*nats.Msg) {
			if seen++; seen <= messages {
				read.Add(1)
			}
			if seen == messages {
				close(done)
			}
		}, nats.OrderedConsumer())
		check(err)
		<-done
		check(subscription.Unsubscribe())
	}
}

func empty(name string) {
	connection, _ := connect()
	server, err := jetstream.New(connection)
	check(err)
	kind := os.Args[4]
	settings := jetstream.ConsumerConfig{
		Durable: kind, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: unfinishedMax,
	}
	if kind == "hundred" {
		settings.AckPolicy = jetstream.AckAllPolicy
	}
	background := context.Background()
	consumer, err := server.CreateConsumer(background, name, settings)
	check(err)
	var read atomic.Int64
	seen := 0
	_, err = consumer.Consume(func(message jetstream.Msg) {
		switch {
		case kind == "confirmed":
			check(message.DoubleAck(background))
			read.Add(1)
		case kind == "each":
			check(message.Ack())
			read.Add(1)
		default:
			if seen++; seen%100 == 0 {
				check(message.Ack())
				read.Add(100)
			}
		}
	})
	check(err)
	report(read.Load)
}

func latency(name string) {
	perSecond, warmup := number(4), number(6)
	seconds, err := strconv.ParseFloat(os.Args[5], 64)
	check(err)
	total := int(float64(perSecond) * (seconds + float64(warmup)))
	_, sender := connect()
	_, receiver := connect()
	create(sender, name)
	origin := time.Now()
	taken := make([]int64, 0, total)
	done := make(chan struct{})
	_, err = receiver.Subscribe(name, func(message *nats.Msg) {
		now := time.Since(origin).Nanoseconds()
		taken = append(taken, now-int64(binary.BigEndian.Uint64(message.Data)))
		if len(taken) == total {
			close(done)
		}
	}, nats.OrderedConsumer())
	check(err)
	runtime.LockOSThread()
	due := time.Since(origin) + 300*time.Millisecond
	free := due
	for range total {
		if wait := due - time.Since(origin); wait > 0 {
			time.Sleep(wait)
		}
		start := time.Since(origin)
		if free > due {
			start = due
		}
		value := make([]byte, latencyBytes)
		binary.BigEndian.PutUint64(value, uint64(start))
		_, err := sender.PublishAsync(name, value, nats.StallWait(time.Minute))
		check(err)
		free = time.Since(origin)
		due += time.Second / time.Duration(perSecond)
	}
	waitAcknowledged(sender)
	select {
	case <-done:
	case <-time.After(lateMax):
		check(fmt.Errorf("%d of %d messages arrived", len(taken), total))
	}
	tell(map[string]any{"taken_ns": taken[perSecond*warmup:]})
}

func main() {
	name := os.Args[3]
	switch os.Args[2] {
	case "produce":
		produce(name)
	case "consume":
		consume(name)
	case "empty":
		empty(name)
	case "latency":
		latency(name)
	case "drop":
		_, stream := connect()
		if err := stream.DeleteStream(name); err != nil && err != nats.ErrStreamNotFound {
			check(err)
		}
	}
}
