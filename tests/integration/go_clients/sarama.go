package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// copier has a transactional producer for each partition it is assigned, as sarama asks for.
type copier struct {
	options options
	ended   context.CancelFunc
	mutex   sync.Mutex
	done    outcome
	ends    int
	failed  error
}

func copyWithSarama(o options) (outcome, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = sessionTimeout / 4
	group, err := sarama.NewConsumerGroup([]string{o.bootstrap}, o.group, config)
	if err != nil {
		return outcome{}, err
	}
	defer group.Close()
	life, end := context.WithCancel(context.Background())
	defer end()
	c := &copier{options: o, ended: end}
	for life.Err() == nil {
		if err := group.Consume(life, []string{o.in}, c); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return c.done, err
		}
	}
	return c.done, c.failed
}

func (c *copier) Setup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// count ends the program when the last record of each partition is committed.
func (c *copier) count(committed []*sarama.ConsumerMessage) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, message := range committed {
		if string(message.Value) == "end" {
			c.ends++
		}
	}
	if c.ends >= c.options.ends {
		c.ended()
	}
}

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0
	config.Producer.Idempotent = true
	config.Producer.Return.Errors = false // CommitTxn tells of them
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Producer.Transaction.ID = fmt.Sprintf("%s-%d", c.options.id, claim.Partition())
	producer, err := sarama.NewAsyncProducer([]string{c.options.bootstrap}, config)
	if err != nil {
		return c.fail(err)
	}
	defer producer.Close()
	for {
		batch := c.take(session, claim)
		if len(batch) == 0 {
			return nil
		}
		if err := c.copyBatch(session, producer, batch); err != nil {
			return c.fail(err)
		}
	}
}

// take waits for a first message, then takes what follows at once, up to a batch.
func (c *copier) take(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) []*sarama.ConsumerMessage {
	var batch []*sarama.ConsumerMessage
	select {
	case message, open := <-claim.Messages():
		if !open {
			return nil
		}
		batch = append(batch, message)
	case <-session.Context().Done():
		return nil
	}
	for len(batch) < c.options.batch {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return batch
			}
			batch = append(batch, message)
		case <-time.After(20 * time.Millisecond):
			return batch
		}
	}
	return batch
}

func (c *copier) copyBatch(session sarama.ConsumerGroupSession, producer sarama.AsyncProducer, batch []*sarama.ConsumerMessage) error {
	c.mutex.Lock()
	attempt := c.done.Commits + c.done.Aborts + 1
	abort := c.options.abortEvery != 0 && attempt%c.options.abortEvery == 0
	if abort {
		c.done.Aborts++
	} else {
		c.done.Commits++
	}
	c.mutex.Unlock()
	// An aborted transaction is tried again at once with the same records: the claim goes on behind them.
	for {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		for _, message := range batch {
			producer.Input() <- &sarama.ProducerMessage{
				Topic: c.options.out, Key: sarama.ByteEncoder(message.Key), Value: sarama.ByteEncoder(message.Value),
			}
		}
		if abort {
			if err := producer.AbortTxn(); err != nil {
				return err
			}
			abort = false
			continue
		}
		for _, message := range batch {
			if err := producer.AddMessageToTxn(message, c.options.group, nil); err != nil {
				return err
			}
		}
		if err := producer.CommitTxn(); err != nil {
			return err
		}
		c.count(batch)
		return nil
	}
}

func (c *copier) fail(err error) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	c.ended()
	return err
}
