package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func copyWithFranz(o options) (outcome, error) {
	var done outcome
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(o.bootstrap),
		kgo.TransactionalID(o.id),
		kgo.ConsumerGroup(o.group),
		kgo.ConsumeTopics(o.in),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.DefaultProduceTopic(o.out),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout/4),
	)
	if err != nil {
		return done, err
	}
	defer session.Close()
	for ends := 0; ends < o.ends; {
		poll, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		fetches := session.PollRecords(poll, o.batch)
		cancel()
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return done, failed.Err
			}
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return done, err
		}
		var promise kgo.FirstErrPromise
		endsRead := 0
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Value) == "end" {
				endsRead++
			}
			session.Produce(context.Background(), &kgo.Record{Key: record.Key, Value: record.Value}, promise.Promise())
		})
		attempt := done.Commits + done.Aborts + 1
		wanted := promise.Err() == nil && (o.abortEvery == 0 || attempt%o.abortEvery != 0)
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(wanted))
		if err != nil {
			return done, err
		}
		if committed {
			done.Commits++
			ends += endsRead
		} else {
			done.Aborts++
		}
	}
	return done, nil
}
