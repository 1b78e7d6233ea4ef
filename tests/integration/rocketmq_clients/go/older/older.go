// In place of ../recent.go for clients before v5.1.3, which cannot push.
package main

import (
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var more = map[string]func() map[string]any{}

func unstarted(topic, group string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	return must(rmq.NewSimpleConsumer(config(group),
		rmq.WithAwaitDuration(5*time.Second),
		rmq.WithSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter})))
}
