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
		Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
			AccessKey: os.Getenv("HEADRACE_ACCESS_KEY"), AccessSecret: os.Getenv("HEADRACE_ACCESS_SECRET"),
		},
	}
}

func producer(options ...rmq.ProducerOption) rmq.Producer {
	made := must(rmq.NewProducer(config(""), append(options, rmq.WithTopics(topic))...))
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
	made := must(rmq.NewSimpleConsumer(config(group),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter})))
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

// This version of the client cannot recall.
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

type seen struct {
	body    string
	attempt int32
}

func pushed(fails func(string, int32) bool) chan seen {
	all := make(chan seen, 100)
	made := must(rmq.NewPushConsumer(config(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(one *rmq.MessageView) rmq.ConsumerResult {
				body, attempt := string(one.GetBody()), one.GetDeliveryAttempt()
				all <- seen{body, attempt}
				if fails(body, attempt) {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}),
		rmq.WithPushConsumptionThreadCount(20),
		rmq.WithPushMaxCacheMessageCount(1024)))
	check(made.Start())
	return all
}

func next(from chan seen) seen {
	select {
	case one := <-from:
		return one
	case <-time.After(wait):
		check(fmt.Errorf("no message within %v", wait))
		panic("unreachable")
	}
}

func failsFirst(body string, attempt int32) bool { return body == "1" && attempt == 1 }

func push() map[string]any {
	sending := producer()
	for number := range 3 {
		send(sending, message(strconv.Itoa(number)))
	}
	all := pushed(failsFirst)
	found := []seen{next(all), next(all), next(all), next(all)}
	sort.Slice(found, func(i, j int) bool {
		if found[i].body != found[j].body {
			return found[i].body < found[j].body
		}
		return found[i].attempt < found[j].attempt
	})
	shown := [][]any{}
	for _, one := range found {
		shown = append(shown, []any{one.body, one.attempt})
	}
	return map[string]any{"seen": shown}
}

func pushFifo() map[string]any {
	sendGroups()
	all := pushed(failsFirst)
	found := []string{}
	for range 8 {
		found = append(found, next(all).body)
	}
	return byGroup(found)
}

func dead() map[string]any {
	made := message("poison")
	made.SetTag("t")
	send(producer(), made)
	all := pushed(func(string, int32) bool { return true })
	attempts := []int32{next(all).attempt, next(all).attempt}
	var letters []*rmq.MessageView
	for begun := time.Now(); len(letters) == 0 && time.Since(begun) < wait; {
		options := rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"%DLQ%" + group: rmq.SUB_ALL})
		undertaker := must(rmq.NewSimpleConsumer(config(group+"-undertaker"), rmq.WithSimpleAwaitDuration(5*time.Second), options))
		if undertaker.Start() != nil { // there is no such topic yet
			time.Sleep(500 * time.Millisecond)
			continue
		}
		letters = received(undertaker, 1)
	}
	shown := [][]any{}
	for _, one := range letters {
		shown = append(shown, []any{string(one.GetBody()), *one.GetTag()})
	}
	return map[string]any{"attempts": attempts, "letters": shown}
}

func main() {
	lanes := map[string]func() map[string]any{
		"normal": normal, "fifo": fifo, "delay": delay, "transaction": transaction,
		"filters": filters, "sql": sql, "push": push, "push_fifo": pushFifo, "dead": dead,
	}
	text := must(json.Marshal(lanes[lane]()))
	fmt.Println(string(text))
	os.Exit(0) // what the client still does would take a while
}
