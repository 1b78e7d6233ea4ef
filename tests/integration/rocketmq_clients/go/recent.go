// What the newest client for Go has: push consumers, and other names of options.
package main

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var more = map[string]func() map[string]any{"push": push, "push_fifo": pushFifo, "dead": dead, "steady": steady}

func unstarted(topic, group string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	return must(rmq.NewSimpleConsumer(config(group),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter})))
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
		undertaker := unstarted("%DLQ%"+group, group+"-undertaker", rmq.SUB_ALL)
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
