// franz-go as the child of a black-box worker: see languages/child.py.
//
// Invariants: knows its parent's protocol and franz-go's public names, no broker and no history.
// Exits when its standard input is closed.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	requestTimeout = 5 * time.Second
	commitTimeout  = 10 * time.Second
	lineBytesMax   = 1 << 20
)

type answer map[string]any

var (
	out   = json.NewEncoder(os.Stdout)
	outMu sync.Mutex
	lines = make(chan []string)
	noted = make(chan struct{})
)

// say writes one line; lines are in the order of the events that they report.
func say(what string, fields answer) {
	fields["what"] = what
	outMu.Lock()
	defer outMu.Unlock()
	if out.Encode(fields) != nil {
		os.Exit(0) // the parent has exited
	}
}

// read passes `noted` lines to the waiting callback, and all others to the main loop.
func read() {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, lineBytesMax)
	for scanner.Scan() {
		words := strings.Split(scanner.Text(), " ")
		if words[0] == "noted" {
			noted <- struct{}{}
		} else {
			lines <- words
		}
	}
	os.Exit(0)
}

func main() {
	settings := map[string]string{}
	for _, argument := range os.Args[2:] {
		name, value, _ := strings.Cut(argument, "=")
		settings[name] = value
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(settings["bootstrap"], ",")...),
		kgo.ClientID(settings["client"]),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
		kgo.DialTimeout(requestTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.AlwaysRetryEOF(), // a broken connection does not mean a wrong setting here
	}
	go read()
	var err error
	if os.Args[1] == "member" {
		err = consume(settings, options)
	} else {
		err = produce(settings, options)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// --- a producer ------------------------------------------------------------------------------

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(),
	"gzip": kgo.GzipCompression(),
	"lz4":  kgo.Lz4Compression(),
	"zstd": kgo.ZstdCompression(),
}

func produce(settings map[string]string, options []kgo.Opt) error {
	lingerMs, err := strconv.Atoi(settings["linger_ms"])
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(options,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[settings["compression"]]),
		kgo.ProducerLinger(time.Duration(lingerMs)*time.Millisecond),
		kgo.ProduceRequestTimeout(requestTimeout),
		kgo.UnknownTopicRetries(-1),
	)...)
	if err != nil {
		return err
	}
	for words := range lines {
		if words[0] == "flush" {
			if err := client.Flush(context.Background()); err != nil {
				return err
			}
			say("flushed", answer{})
			continue
		}
		if err := send(client, words); err != nil {
			return err
		}
	}
	return nil
}

// send executes `send TOPIC PARTITION VALUE BYTES`.
func send(client *kgo.Client, words []string) error {
	part, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	data, err := base64.StdEncoding.DecodeString(words[4])
	if err != nil {
		return err
	}
	value := json.Number(words[3])
	record := &kgo.Record{Topic: words[1], Partition: int32(part), Value: data}
	client.Produce(context.Background(), record, func(stored *kgo.Record, err error) {
		if err == nil {
			say("stored", answer{"value": value, "offset": stored.Offset})
			return
		}
		code := int16(-1)
		var told *kerr.Error
		if errors.As(err, &told) {
			code = told.Code
		}
		say("failed", answer{"value": value, "code": code, "error": err.Error()})
	})
	return nil
}

// --- a group's member ------------------------------------------------------------------------

type member struct{ client *kgo.Client }

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

func consume(settings map[string]string, options []kgo.Opt) error {
	client, err := kgo.NewClient(append(options,
		kgo.ConsumeTopics(strings.Split(settings["topics"], ",")...),
		kgo.ConsumerGroup(settings["group"]),
		kgo.Balancers(balancers[settings["strategy"]]),
		kgo.SessionTimeout(milliseconds(settings["session_timeout_ms"])),
		kgo.HeartbeatInterval(milliseconds(settings["heartbeat_ms"])),
		kgo.RebalanceTimeout(20*time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		// There is no rebalance between two polls, so committed partitions are owned.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(teller("assigned")),
		kgo.OnPartitionsRevoked(teller("revoked")),
		kgo.OnPartitionsLost(teller("lost")),
	)...)
	if err != nil {
		return err
	}
	one := member{client}
	for words := range lines {
		switch words[0] {
		case "poll":
			one.poll(milliseconds(words[1]))
		case "commit":
			if err := one.commit(words[1:]); err != nil {
				return err
			}
		default:
			client.CloseAllowingRebalance()
			say("closed", answer{})
			return nil
		}
	}
	return nil
}

func milliseconds(text string) time.Duration {
	count, err := strconv.Atoi(text)
	if err != nil {
		panic(err) // a bug of the parent
	}
	return time.Duration(count) * time.Millisecond
}

// teller reports assigned or revoked partitions, and waits until the parent has recorded it.
func teller(what string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
		parts := [][2]any{}
		for topic, numbers := range assigned {
			for _, number := range numbers {
				parts = append(parts, [2]any{topic, number})
			}
		}
		say(what, identified(client, answer{"parts": parts}))
		<-noted
	}
}

func identified(client *kgo.Client, fields answer) answer {
	fields["member"], fields["generation"] = client.GroupMetadata()
	return fields
}

func (one member) poll(timeout time.Duration) {
	const recordsMax = 200
	one.client.AllowRebalance()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	fetches := one.client.PollRecords(ctx, recordsMax)
	fields := answer{}
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			fields["error"] = err.Error()
		}
	})
	records := [][4]any{}
	fetches.EachRecord(func(record *kgo.Record) {
		records = append(records, [4]any{record.Topic, record.Partition, record.Offset, record.Value})
	})
	fields["records"] = records
	say("polled", identified(one.client, fields))
}

// commit executes `commit TOPIC:PARTITION:OFFSET ...`.
func (one member) commit(places []string) error {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, place := range places {
		parts := strings.Split(place, ":")
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			return err
		}
		end, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return err
		}
		if offsets[parts[0]] == nil {
			offsets[parts[0]] = map[int32]kgo.EpochOffset{}
		}
		offsets[parts[0]][int32(number)] = kgo.EpochOffset{Epoch: -1, Offset: end}
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	failure := ""
	one.client.CommitOffsetsSync(ctx, offsets, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, told *kmsg.OffsetCommitResponse, err error,
	) {
		if err != nil {
			failure = err.Error()
			return
		}
		for _, topic := range told.Topics {
			for _, part := range topic.Partitions {
				if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
					failure = err.Error()
				}
			}
		}
	})
	fields := answer{}
	if failure != "" {
		fields["error"] = failure
	}
	say("committed", identified(one.client, fields))
	return nil
}
