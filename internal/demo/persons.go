package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream"
)

// The demonstration of persons uses one log with a few heavy users and many users with few records. It is copied to
// three topics, because a ledger charges either a topic's records or its persons, never both.
//
//	records  protects one record at (ε, δ)
//	persons  protects all records of a person at (ε, δ); only some of them count
//	group    protects records at a smaller ε, at which as many records as the busiest person has
//	         are protected together at (ε, δ)
const (
	personsStep       = 400 // offsets per step
	personsSteps      = 100
	personsSeparation = 10
	personsCap        = personsSteps/personsSeparation + 1 // the horizon is one step longer than the log
	personsUsers      = 6000
	personsCentre     = 50 // centre of the amounts, which are from 0 to 100
	personsScale      = 50
)

// personStreams are the names of the streams. The name of each stream's topic begins with the stream's name.
var personStreams = []string{"records", "persons", "group"}

// runPersons runs the demonstration of persons.
func runPersons(ctx context.Context, o *Options) error {
	begun := time.Now()
	log := newPersonLog(o.seed())
	dir, err := os.MkdirTemp("", "streamdp-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	broker, err := embedded.Start(embedded.Options{})
	if err != nil {
		return err
	}
	defer broker.Close()
	for _, name := range personStreams {
		if err := broker.CreateTopic(ctx, name, 1, map[string]string{"retention.ms": "-1"}); err != nil {
			return err
		}
	}
	text, err := log.configuration(o, broker.Addr(), dir)
	if err != nil {
		return err
	}
	cfg, err := config.Parse("demo configuration", text)
	if err != nil {
		return flagFaults(err)
	}
	if err := described(cfg); err != nil {
		return err
	}
	daemon, err := (&demonstration{o: o}).daemon(cfg)
	if err != nil {
		return err
	}
	defer daemon.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- daemon.Run(running) }()
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{broker.Addr()}})
	if err != nil {
		return err
	}
	defer client.Close()
	if !o.Once {
		if err := serving(ctx, daemon, done); err != nil {
			return err
		}
		page := "http://" + daemon.Addr() + "/"
		fmt.Fprintf(o.Stderr, "the page is at %s\n", page)
		if o.Open {
			if err := openPage(page); err != nil {
				fmt.Fprintf(o.Stderr, "streamdp: warning: %s\n", err)
			}
		}
	}
	bar := o.Progress(int64(len(personStreams) * len(log.records)))
	for i, name := range personStreams {
		if err = log.send(running, client, name, func(n int) { bar.Set64(int64(i*len(log.records) + n)) }); err != nil {
			break
		}
	}
	if err == nil {
		err = allPublished(ctx, daemon, done)
	}
	bar.Finish()
	if ctx.Err() != nil { // the user interrupted
		stop()
		return <-done
	}
	if err != nil {
		return err
	}
	result, err := log.judge(ctx, client, o)
	if err != nil {
		return err
	}
	result.Seconds = time.Since(begun).Seconds()
	if o.JSON {
		err = json.NewEncoder(o.Stdout).Encode(result)
	} else {
		err = result.print(o.Stdout)
	}
	if err != nil {
		return err
	}
	if !o.Once {
		fmt.Fprintln(o.Stderr, "stream consumed; the page stays until you interrupt")
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
		}
	}
	stop()
	return <-done
}

// allPublished waits until all streams have published all steps of the log.
func allPublished(ctx context.Context, daemon *stream.Daemon, done chan error) error {
	for {
		left := len(personStreams)
		for _, s := range daemon.Status() {
			if s.Step >= personsSteps && s.Outbox == 0 {
				left--
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// configuration returns the daemon's configuration.
func (l *personLog) configuration(o *Options, broker, dir string) ([]byte, error) {
	group, err := l.groupEpsilon(o)
	if err != nil {
		return nil, err
	}
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	text := fmt.Appendf(nil,
		"[kafka]\nbrokers = [%s]\n[state]\ndir = %s\nkey_file = \"unused\"\ncommit_interval = \"50ms\"\n[http]\n"+
			"listen = %s\n",
		quote(broker), quote(filepath.Join(dir, "state")), quote(o.Listen))
	for _, name := range personStreams {
		epsilon, user := o.Epsilon, ""
		switch name {
		case "group":
			epsilon = group
		case "persons":
			user = fmt.Sprintf("[stream.persons.user]\nkey = \"record-key\"\nseparation = %d\nmax_users = %d\n",
				personsSeparation, personsSeparation*personsStep)
		}
		text = fmt.Appendf(text, `[stream.%[1]s]
input = { topic = %[2]q, codec = "json", columns = ["amount"] }
centre = %[3]d
scale = %[4]d
step = %[5]d
horizon = %[6]d
privacy = { epsilon = %[7]g, delta = %[8]g, adjacency = %[9]s }
moments = { clip = 1.0, covariance = false }
%[10]s`, name, name, personsCentre, personsScale, personsStep, personsSteps+1, epsilon, o.Delta, quote(o.Adjacency), user)
	}
	return text, nil
}

// groupEpsilon returns the ε for single records with which all records of the busiest person together cost the ε of the
// demonstration. It is rounded down.
func (l *personLog) groupEpsilon(o *Options) (float64, error) {
	p := dp.Params{Epsilon: o.Epsilon, Delta: o.Delta}
	if err := p.Adjacency.UnmarshalText([]byte(o.Adjacency)); err != nil {
		return 0, exit.Usage{Err: err}
	}
	mu, err := p.Budget()
	if err != nil {
		return 0, exit.Usage{Err: err}
	}
	epsilon, err := dp.Cost{Adjacency: p.Adjacency, Mu: mu / float64(l.busiest)}.Epsilon(o.Delta)
	if err != nil {
		return 0, exit.Usage{Err: fmt.Errorf("delta is too large to protect %d records together: %w", l.busiest, err)}
	}
	if epsilon *= 1 - 1e-6; !(epsilon > 0) {
		return 0, exit.Usagef("--delta: must be smaller: with this delta %d records together need no noise", l.busiest)
	}
	return epsilon, nil
}
