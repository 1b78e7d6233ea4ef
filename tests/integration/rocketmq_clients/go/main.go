// RocketMQ's official client for Go: ENDPOINT LANE TOPIC GROUP; see ../client.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	wait      = 40 * time.Second
	invisible = 15 * time.Second
)

var endpoint, lane, topic, group = os.Args[1], os.Args[2], os.Args[3], os.Args[4]

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint: endpoint, ConsumerGroup: group, NameSpace: os.Getenv("HEADRACE_NAMESPACE"), Credentials: &credentials.SessionCredentials{
			AccessKey: os.Getenv("HEADRACE_ACCESS_KEY"), AccessSecret: os.Getenv("HEADRACE_ACCESS_SECRET"),
		},
	}
}

func producer(options ...rmq.ProducerOption) rmq.Producer {
	made := must(rmq.NewProducer(config(""), append([]rmq.ProducerOption{rmq.WithTopics(topic)}, options...)...))
	check(made.Start())
	return made
}

func message(body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(from rmq.Producer, message *rmq.Message) {
	must(from.Send(context.Background(), message))
}

func consumer(topic, group string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	made := unstarted(topic, group, filter)
	check(made.Start())
	return made
}

func received(from rmq.SimpleConsumer, count int) []*rmq.MessageView {
	found := []*rmq.MessageView{}
	deadline := time.Now().Add(wait)
	for len(found) < count && time.Now().Before(deadline) {
		some, _ := from.Receive(context.Background(), 16, invisible) // none is an error to this client
		for _, one := range some {
			found = append(found, one)
			check(from.Ack(context.Background(), one))
		}
	}
	return found
}

func bodies(messages []*rmq.MessageView) []string {
	found := []string{}
	for _, one := range messages {
		found = append(found, string(one.GetBody()))
	}
	return found
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

func byGroup(found []string) map[string]any {
	groups := map[string]any{"a": []string{}, "b": []string{}}
	for _, one := range found {
		groups[one[:1]] = append(groups[one[:1]].([]string), one)
	}
	return groups
}

func normal() map[string]any {
	sending := producer()
	for number := range 10 {
		made := message(strconv.Itoa(number))
		made.SetTag("t")
		made.SetKeys("k" + strconv.Itoa(number))
		made.AddProperty("n", strconv.Itoa(number))
		send(sending, made)
	}
	found := received(consumer(topic, group, rmq.SUB_ALL), 10)
	sort.Slice(found, func(i, j int) bool { return string(found[i].GetBody()) < string(found[j].GetBody()) })
	shown := [][]any{}
	for _, one := range found {
		row := []any{string(one.GetBody()), *one.GetTag(), one.GetKeys()[0], one.GetProperties()["n"], one.GetDeliveryAttempt()}
		shown = append(shown, row)
	}
	return map[string]any{"messages": shown}
}

func sendGroups() {
	sending := producer()
	for number := range 4 {
		for _, group := range []string{"a", "b"} {
			made := message(group + strconv.Itoa(number))
			made.SetMessageGroup(group)
			send(sending, made)
		}
	}
}

func fifo() map[string]any {
	sendGroups()
	return byGroup(bodies(received(consumer(topic, group, rmq.SUB_ALL), 8)))
}

func delay() map[string]any {
	due := time.Now().Add(3 * time.Second)
	made := message("kept")
	made.SetDelayTimestamp(due)
	send(producer(), made)
	found := bodies(received(consumer(topic, group, rmq.SUB_ALL), 1))
	return map[string]any{
		"messages": found,
		"is_early": time.Now().Before(due),
		"is_late":  time.Now().After(due.Add(2 * time.Second)),
	}
}

func transaction() map[string]any {
	sending := producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT },
	}))
	for _, body := range []string{"committed", "rolled back", "checked"} {
		begun := sending.BeginTransaction()
		must(sending.SendWithTransaction(context.Background(), message(body), begun))
		switch body {
		case "committed":
			check(begun.Commit())
		case "rolled back":
			check(begun.RollBack())
		}
	}
	found := bodies(received(consumer(topic, group, rmq.SUB_ALL), 2))
	return map[string]any{"messages": sorted(found)}
}

func filters() map[string]any {
	sending := producer()
	for number, tag := range "abca" {
		made := message(strconv.Itoa(number))
		made.SetTag(string(tag))
		send(sending, made)
	}
	found := received(consumer(topic, group, rmq.NewFilterExpression("a || b")), 3)
	return map[string]any{"messages": sorted(bodies(found))}
}

func sql() map[string]any {
	sending := producer()
	for number := range 4 {
		made := message(strconv.Itoa(number))
		made.SetTag("t")
		made.AddProperty("n", strconv.Itoa(number))
		send(sending, made)
	}
	filter := rmq.NewFilterExpressionWithType("n > 1 AND TAGS = 't'", rmq.SQL92)
	found := received(consumer(topic, group, filter), 2)
	return map[string]any{"messages": sorted(bodies(found))}
}

func main() {
	lanes := map[string]func() map[string]any{
		"normal": normal, "fifo": fifo, "delay": delay, "transaction": transaction,
		"filters": filters, "sql": sql,
	}
	for name, run := range more {
		lanes[name] = run
	}
	text := must(json.Marshal(lanes[lane]()))
	fmt.Println(string(text))
	os.Exit(0) // what the client still does would take a while
}
