// Consume, transform, produce in transactions: one program, two client libraries. And a share group.
//
//	clients LIBRARY -bootstrap HOST:PORT -in TOPIC -out TOPIC -group G -id TRANSACTIONAL_ID
//	clients share -bootstrap HOST:PORT -topic TOPIC -group G
//	clients login -library LIBRARY -bootstrap HOST:PORT -topic TOPIC -ca FILE
//
// share.go and login.go say what these do. The others copy until they have committed -ends records whose value
// is "end". Each transaction takes what one poll returned, at most -batch records; each
// -abort-every-th transaction is aborted and its input read again. The last line of the output is
// {"commits": N, "aborts": N}.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

// A member that is killed holds its partitions for this long.
const sessionTimeout = 6 * time.Second

type options struct {
	bootstrap, in, out, group, id string
	batch, abortEvery, ends       int
}

type outcome struct {
	Commits int `json:"commits"`
	Aborts  int `json:"aborts"`
}

var libraries = map[string]func(options) (outcome, error){
	"franz-go": copyWithFranz,
	"sarama":   copyWithSarama,
}

func main() {
	var o options
	flags := flag.NewFlagSet("clients", flag.ExitOnError)
	flags.StringVar(&o.bootstrap, "bootstrap", "", "host:port")
	flags.StringVar(&o.in, "in", "", "topic to read")
	flags.StringVar(&o.out, "out", "", "topic to write")
	flags.StringVar(&o.group, "group", "", "consumer group")
	flags.StringVar(&o.id, "id", "", "transactional id")
	flags.IntVar(&o.batch, "batch", 10, "records of a transaction")
	flags.IntVar(&o.abortEvery, "abort-every", 0, "abort each n-th transaction; 0: none")
	flags.IntVar(&o.ends, "ends", 2, "stop after so many committed records with the value \"end\"")
	if len(os.Args) > 1 && os.Args[1] == "share" {
		exitOn(share(os.Args[2:]))
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "login" {
		exitOn(login(os.Args[2:]))
		return
	}
	if len(os.Args) < 2 || libraries[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: clients franz-go|sarama|share|login [flags]")
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:])
	done, err := libraries[os.Args[1]](o)
	exitOn(err)
	_ = json.NewEncoder(os.Stdout).Encode(done)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
