// RocketMQ's official client for Go, told what to do as ../client.py: ENDPOINTS GROUP.
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
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
)

const (
	awaitFor = time.Second
	heldMax  = 5_000
)

type answer map[string]any

type delivery struct {
	from rmq.SimpleConsumer
	view *rmq.MessageView
}

var (
	endpoints = os.Args[1]
	group     = os.Args[2]
	producers = map[string]rmq.Producer{}
	consumers = map[string]rmq.SimpleConsumer{}
	held      = map[string]delivery{}
	receipts  []string // of held, oldest first
	// What the producer decides, also when it is asked; what another one has sent is left open.
	decisions sync.Map
)

func config() *rmq.Config {
	return &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

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
	made, err := rmq.NewProducer(config(), rmq.WithTopics(topic),
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

func consumerOf(topic string) (rmq.SimpleConsumer, error) {
	if made, ok := consumers[topic]; ok {
		return made, nil
	}
	all := map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}
	made, err := rmq.NewSimpleConsumer(config(), rmq.WithSimpleAwaitDuration(awaitFor),
		rmq.WithSimpleSubscriptionExpressions(all))
	if err == nil {
		err = made.Start()
	}
	if err == nil {
		consumers[topic] = made
	}
	return made, err
}

func textOf(optional *string) any {
	if optional == nil || *optional == "" {
		return nil
	}
	return *optional
}

func receive(topic, count, seconds string) answer {
	consumer, err := consumerOf(topic)
	if err != nil {
		return failed(err)
	}
	most, _ := strconv.Atoi(count)
	locked, _ := strconv.Atoi(seconds)
	found, err := consumer.Receive(context.Background(), int32(most), time.Duration(locked)*time.Second)
	if status, ok := rmq.AsErrRpcStatus(err); err != nil && !(ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND)) {
		return failed(err)
	}
	messages := [][]any{}
	for _, one := range found {
		receipt := one.GetReceiptHandle()
		held[receipt] = delivery{consumer, one}
		receipts = append(receipts, receipt)
		var key any
		if keys := one.GetKeys(); len(keys) > 0 {
			key = keys[0]
		}
		text := base64.StdEncoding.EncodeToString(one.GetBody())
		messages = append(messages, []any{receipt, textOf(one.GetMessageGroup()), key, one.GetDeliveryAttempt(), text})
	}
	for ; len(receipts) > heldMax; receipts = receipts[1:] {
		delete(held, receipts[0])
	}
	return answer{"what": "received", "messages": messages}
}

// The library's Ack returns no error if the broker refuses it: the status is read from the response.
type acknowledged struct{}

func seeAcknowledged(ctx context.Context, method string, request, response any, on *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := call(ctx, method, request, response, on, options...)
	if seen, ok := ctx.Value(acknowledged{}).(**v2.Status); ok && err == nil {
		*seen = response.(*v2.AckMessageResponse).GetStatus()
	}
	return err
}

func init() {
	plain := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, options ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		seeing := rmq.WithDialOptions(grpc.WithChainUnaryInterceptor(seeAcknowledged))
		return plain(target, append(options, rmq.WithRpcClientConnOption(seeing))...)
	}
}

func ack(receipt string) answer {
	var status *v2.Status
	ctx := context.WithValue(context.Background(), acknowledged{}, &status)
	err := held[receipt].from.Ack(ctx, held[receipt].view)
	if err == nil && status == nil {
		err = errors.New("the library returned without a response")
	}
	if err == nil && status.GetCode() != v2.Code_OK {
		err = &rmq.ErrRpcStatus{Code: int32(status.GetCode()), Message: status.GetMessage()}
	}
	if err != nil {
		return failed(err)
	}
	delete(held, receipt)
	return answer{"what": "settled"}
}

func renew(receipt, seconds string) answer {
	locked, _ := strconv.Atoi(seconds)
	err := held[receipt].from.ChangeInvisibleDuration(held[receipt].view, time.Duration(locked)*time.Second)
	if err != nil {
		return failed(err)
	}
	return answer{"what": "settled"}
}

func answerTo(words []string) answer {
	switch words[0] {
	case "receive":
		return receive(words[1], words[2], words[3])
	case "ack":
		return ack(words[1])
	case "renew":
		return renew(words[1], words[2])
	}
	return send(words[1], words[2], words[3], words[4])
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		words := append(strings.Fields(lines.Text()), "") // the detail may be empty
		text, _ := json.Marshal(answerTo(words))
		fmt.Println(string(text))
	}
	os.Exit(0) // the library would go on for a while
}
