// Sends and receives until the standard input ends, as ../java/Steady.java does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

const delayBy = 2 * time.Second

// history is what the application has done and seen.
type history struct {
	sync.Mutex
	sent, decided map[string]bool
	seen, asked   map[string]int
	first, wrong  []string
	errors        map[string][]string
}

func (h *history) with(change func()) {
	h.Lock()
	defer h.Unlock()
	change()
}

func (h *history) failed(what string, err error) {
	h.with(func() { h.errors[what] = append(h.errors[what], err.Error()) })
}

func isCommitted(half string) bool {
	number := must(strconv.Atoi(strings.Fields(half)[1]))
	return number%4 == 0 || number%8 == 2
}

func timeOf(due string) time.Time {
	return time.UnixMilli(must(strconv.ParseInt(strings.Fields(due)[2], 10, 64)))
}

func (h *history) see(body string) {
	h.seen[body]++
	if h.seen[body] == 1 {
		h.first = append(h.first, body)
	}
	if strings.HasPrefix(body, "due") && time.Now().Before(timeOf(body)) {
		h.wrong = append(h.wrong, "early: "+body)
	}
	if strings.HasPrefix(body, "half") && !(h.decided[body] && isCommitted(body)) {
		h.wrong = append(h.wrong, "not committed: "+body)
	}
}

func (h *history) check(one *rmq.MessageView) rmq.TransactionResolution {
	body := string(one.GetBody())
	h.with(func() {
		h.decided[body] = true
		h.asked[body]++
	})
	if isCommitted(body) {
		return rmq.COMMIT
	}
	return rmq.ROLLBACK
}

func (h *history) sendGroup(sending rmq.Producer, number int) error {
	made := message(strconv.Itoa(number))
	made.SetMessageGroup("g" + strconv.Itoa(number%8))
	_, err := sending.Send(context.Background(), made)
	if err == nil {
		h.with(func() { h.sent[strconv.Itoa(number)] = true })
	}
	return err
}

// Of four: one delayed, one committed, one rolled back, and one of which the check decides.
func (h *history) sendMixed(sending rmq.Producer, number int) error {
	if number%4 == 3 {
		due := time.Now().Add(delayBy).Truncate(time.Millisecond)
		body := fmt.Sprintf("due %d %d", number, due.UnixMilli())
		made := &rmq.Message{Topic: topic + "-mixed", Body: []byte(body)}
		made.SetDelayTimestamp(due)
		_, err := sending.Send(context.Background(), made)
		if err == nil {
			h.with(func() { h.sent[body] = true })
		}
		return err
	}
	body := fmt.Sprintf("half %d", number)
	begun := sending.BeginTransaction()
	made := &rmq.Message{Topic: topic + "-mixed", Body: []byte(body)}
	if _, err := sending.SendWithTransaction(context.Background(), made, begun); err != nil {
		return err
	}
	h.with(func() {
		h.sent[body] = isCommitted(body)
		h.decided[body] = h.decided[body] || number%4 != 2
	})
	switch {
	case number%4 == 2:
		return nil
	case isCommitted(body):
		return begun.Commit()
	default:
		return begun.RollBack()
	}
}

func (h *history) isReceived() (all bool) {
	h.with(func() { all = len(h.missing()) == 0 })
	return
}

func (h *history) missing() []string {
	left := []string{}
	for body, counts := range h.sent {
		if counts && h.seen[body] == 0 {
			left = append(left, body)
		}
	}
	return left
}

func (h *history) receive(from rmq.SimpleConsumer, isOver *atomic.Bool) {
	for !isOver.Load() || !h.isReceived() {
		found, err := from.Receive(context.Background(), 16, invisible)
		if status, ok := rmq.AsErrRpcStatus(err); err != nil && !(ok && status.GetCode() == 40401) {
			h.failed("receive", err)
			time.Sleep(100 * time.Millisecond)
		}
		for _, one := range found {
			h.with(func() { h.see(string(one.GetBody())) })
			if err := from.Ack(context.Background(), one); err != nil {
				h.failed("ack", err)
			}
		}
	}
}

// Only of messages whose send succeeded: another one may have been stored later.
func (h *history) findDisorder() {
	last := map[int]int{}
	for _, body := range h.first {
		if strings.Contains(body, " ") || !h.sent[body] {
			continue
		}
		number := must(strconv.Atoi(body))
		if before := last[number%8]; number < before {
			h.wrong = append(h.wrong, fmt.Sprintf("after %d: %d", before, number))
		}
		last[number%8] = number
	}
}

// Half messages that the application was asked about although it had settled them, or again: this
// client sends a half message whose answer was lost once more, so that there are two.
func (h *history) resent() map[string]int {
	found := map[string]int{}
	for body, times := range h.asked {
		if must(strconv.Atoi(strings.Fields(body)[1]))%4 == 2 {
			times--
		}
		if times > 0 {
			found[body] = times
		}
	}
	return found
}

// Without "again": this client's Ack returns no error if the broker refuses it.
func (h *history) shown() map[string]any {
	h.Lock()
	defer h.Unlock()
	h.findDisorder()
	sent, committed := 0, []string{}
	for body, counts := range h.sent {
		if counts {
			sent++
		}
		if counts && strings.HasPrefix(body, "half") {
			committed = append(committed, body)
		}
	}
	return map[string]any{
		"sent": sent, "missing": h.missing(), "committed": committed, "wrong": h.wrong,
		"resent": h.resent(), "send": h.errors["send"], "receive": h.errors["receive"], "ack": h.errors["ack"],
	}
}

func steady() map[string]any {
	h := &history{
		sent: map[string]bool{}, decided: map[string]bool{}, seen: map[string]int{}, asked: map[string]int{}, wrong: []string{},
		errors: map[string][]string{"send": {}, "receive": {}, "ack": {}},
	}
	sending := producer(rmq.WithTopics(topic, topic+"-mixed"),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: h.check}))
	var isOver, isAllSent atomic.Bool
	var senders, receivers sync.WaitGroup
	repeat := func(step func(rmq.Producer, int) error, pause time.Duration) {
		defer senders.Done()
		for number := 0; !isOver.Load(); number++ {
			if err := step(sending, number); err != nil {
				h.failed("send", err)
			}
			time.Sleep(pause)
		}
	}
	senders.Add(2)
	go repeat(h.sendGroup, 10*time.Millisecond)
	go repeat(h.sendMixed, 50*time.Millisecond)
	for _, of := range []string{topic, topic, topic + "-mixed"} {
		from := consumer(of, group, rmq.SUB_ALL)
		receivers.Add(1)
		go func() {
			defer receivers.Done()
			h.receive(from, &isAllSent)
		}()
	}
	for seen := 0; seen < 100; time.Sleep(50 * time.Millisecond) {
		h.with(func() { seen = len(h.seen) })
	}
	fmt.Println("going")
	must(io.ReadAll(os.Stdin))
	isOver.Store(true)
	senders.Wait()
	isAllSent.Store(true)
	ended := make(chan struct{})
	go func() { receivers.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(3 * wait):
	}
	return h.shown()
}
