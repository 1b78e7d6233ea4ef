package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	franzscram "github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/xdg-go/scram"
)

const loginTimeout = time.Minute

// entry is how a client reaches a listener that is closed to others. The password, or the token of
// OAUTHBEARER, is in the environment.
type entry struct {
	library, bootstrap, topic, mechanism, user, ca, cert, key string
}

// login writes a record over a secured listener and prints the first that it reads.
//
//	SASL_PASSWORD=P clients login -library franz-go -bootstrap HOST:PORT -topic T -ca FILE
//	  [-mechanism M -user U] [-cert FILE -key FILE]
func login(arguments []string) error {
	var e entry
	flags := flag.NewFlagSet("login", flag.ExitOnError)
	flags.StringVar(&e.library, "library", "", "franz-go or sarama")
	flags.StringVar(&e.bootstrap, "bootstrap", "", "host:port")
	flags.StringVar(&e.topic, "topic", "", "topic to write and read")
	flags.StringVar(&e.mechanism, "mechanism", "", "of SASL; none: no login")
	flags.StringVar(&e.user, "user", "", "who logs in")
	flags.StringVar(&e.ca, "ca", "", "file of the CA")
	flags.StringVar(&e.cert, "cert", "", "file of the client's certificate")
	flags.StringVar(&e.key, "key", "", "file of its key")
	_ = flags.Parse(arguments)
	encrypted, err := e.tls()
	if err != nil {
		return err
	}
	enter := map[string]func(entry, *tls.Config, string) (string, error){
		"franz-go": enterWithFranz, "sarama": enterWithSarama,
	}[e.library]
	value, err := enter(e, encrypted, os.Getenv("SASL_PASSWORD"))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{"read": value})
}

func (e entry) tls() (*tls.Config, error) {
	ca, err := os.ReadFile(e.ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(ca)
	if e.cert != "" {
		pair, err := tls.LoadX509KeyPair(e.cert, e.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func enterWithFranz(e entry, encrypted *tls.Config, password string) (string, error) {
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: e.user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": franzscram.Auth{User: e.user, Pass: password}.AsSha256Mechanism(),
		"SCRAM-SHA-512": franzscram.Auth{User: e.user, Pass: password}.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: password}.AsMechanism(),
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(e.bootstrap), kgo.DialTLSConfig(encrypted), kgo.ConsumeTopics(e.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic(e.topic),
	}
	if e.mechanism != "" {
		options = append(options, kgo.SASL(mechanisms[e.mechanism]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	life, end := context.WithTimeout(context.Background(), loginTimeout)
	defer end()
	if err := client.ProduceSync(life, kgo.StringRecord("v")).FirstErr(); err != nil {
		return "", err
	}
	fetches := client.PollFetches(life)
	if fetches.NumRecords() == 0 {
		return "", errors.Join(fetches.Err0(), errors.New("no record"))
	}
	return string(fetches.Records()[0].Value), nil
}

// conversation is the SCRAM that sarama leaves to its users.
type conversation struct {
	hash  scram.HashGeneratorFcn
	steps *scram.ClientConversation
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err != nil {
		return err
	}
	c.steps = client.NewConversation()
	return nil
}

func (c *conversation) Step(challenge string) (string, error) { return c.steps.Step(challenge) }

func (c *conversation) Done() bool { return c.steps.Done() }

type fixedToken string

func (t fixedToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func enterWithSarama(e entry, encrypted *tls.Config, password string) (string, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0
	config.Producer.Return.Successes = true
	config.Net.TLS.Enable, config.Net.TLS.Config = true, encrypted
	if e.mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.User, config.Net.SASL.Password = e.user, password
		config.Net.SASL.Mechanism = sarama.SASLMechanism(e.mechanism)
		config.Net.SASL.TokenProvider = fixedToken(password)
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			if strings.HasSuffix(e.mechanism, "512") {
				return &conversation{hash: scram.SHA512}
			}
			return &conversation{hash: scram.SHA256}
		}
	}
	client, err := sarama.NewClient([]string{e.bootstrap}, config)
	if err != nil {
		return "", err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return "", err
	}
	message := &sarama.ProducerMessage{Topic: e.topic, Value: sarama.StringEncoder("v")}
	if _, _, err := producer.SendMessage(message); err != nil {
		return "", err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return "", err
	}
	partition, err := consumer.ConsumePartition(e.topic, 0, sarama.OffsetOldest)
	if err != nil {
		return "", err
	}
	select {
	case found := <-partition.Messages():
		return string(found.Value), nil
	case <-time.After(loginTimeout):
		return "", errors.New("no record")
	}
}
