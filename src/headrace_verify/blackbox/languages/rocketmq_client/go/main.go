// RocketMQ's official client for Go, told what to do as ../client.py: ENDPOINTS. It only sends: the
// library does not say whether an acknowledgement was refused.
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

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type answer map[string]any

var (
	endpoints = os.Args[1]
	producers = map[string]rmq.Producer{}
	// What the producer decides, also when it is asked; what another one has sent is left open.
	decisions sync.Map
)

// One of each, by topic: a producer is asked about half messages of its topics.
func producerOf(topic string) (rmq.Producer, error) {
	if made, ok := producers[topic]; ok {
		return made, nil
	}
	check := func(one *rmq.MessageView) rmq.TransactionResolution {
		if found, ok := decisions.Load(string(one.GetBody())); ok {
			return found.(rmq.TransactionResolution)
		}
		return rmq.UNKNOWN
	}
	config := &rmq.Config{Endpoint: endpoints, Credentials: &credentials.SessionCredentials{}}
	made, err := rmq.NewProducer(config, rmq.WithTopics(topic),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	if err == nil {
		err = made.Start()
	}
	if err == nil {
		producers[topic] = made
	}
	return made, err
}

func failed(err error) answer {
	code := 0
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		code = int(status.Code)
	}
	return answer{"what": "failed", "code": code, "error": err.Error()}
}

func sendHalf(producer rmq.Producer, message *rmq.Message, detail string) answer {
	decision := rmq.ROLLBACK
	if strings.HasSuffix(detail, "commit") {
		decision = rmq.COMMIT
	}
	decisions.Store(string(message.Body), decision)
	begun := producer.BeginTransaction()
	if _, err := producer.SendWithTransaction(context.Background(), message, begun); err != nil {
		return failed(err)
	}
	found := answer{"what": "sent", "offset": -1}
	var err error
	switch detail {
	case "commit":
		err = begun.Commit()
	case "rollback":
		err = begun.RollBack()
	}
	if err != nil {
		found["end"], found["error"] = "failed", err.Error()
	}
	return found
}

func send(kind, topic, text, detail string) answer {
	producer, err := producerOf(topic)
	if err != nil {
		return failed(err)
	}
	body, _ := base64.StdEncoding.DecodeString(text)
	message := &rmq.Message{Topic: topic, Body: body}
	switch kind {
	case "half":
		return sendHalf(producer, message, detail)
	case "ordered":
		message.SetMessageGroup(detail)
	case "delayed":
		due, _ := strconv.ParseInt(detail, 10, 64)
		message.SetDelayTimestamp(time.Unix(due, 0))
	}
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return failed(err)
	}
	return answer{"what": "sent", "offset": receipts[0].Offset}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		words := append(strings.Fields(lines.Text()), "") // the detail may be empty
		text, _ := json.Marshal(send(words[1], words[2], words[3], words[4]))
		fmt.Println(string(text))
	}
	os.Exit(0) // the library would go on for a while
}
