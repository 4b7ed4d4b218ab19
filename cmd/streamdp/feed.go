package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"streamdp/internal/kafka"
	"streamdp/stream"
)

// feedFlags are the flags of feed.
type feedFlags struct {
	stream, topic, codec, csv, ndjson, header string
	brokers, columns                          []string
	partition                                 int
	rate                                      int
	create                                    bool
	labels                                    []string // of the stream's columns, where records hold them without names
}

func feedCommand(g *globals) *cobra.Command {
	var f feedFlags
	c := &cobra.Command{
		Use:   "feed (-c FILE --stream NAME | --brokers LIST --topic TOPIC) (--csv FILE | --ndjson FILE)",
		Short: "Send the rows of a file to a topic",
		Long: "Send the rows of a CSV file, or the lines of an NDJSON file, to a topic, in\n" +
			"order. A file may be compressed (.gz) or - for standard input. If a broker\n" +
			"fails, a request is sent again: rows may then be there twice.\n\n" +
			"The topic must exist, or --create makes it with the cluster's defaults. A cell\n" +
			"that is no number makes its record invalid: it counts as the zero row.",
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range []string{"brokers", "topic", "codec"} {
				if f.stream != "" && c.Flags().Changed(name) {
					return usagef("--%s is what --stream takes from the configuration: give one of them", name)
				}
			}
			return g.feed(c.Context(), &f, c.Flags().Changed("partition"))
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.stream, "stream", "", "take brokers, topic, codec and, unless they are given, partition and columns from this stream of the configuration")
	fl.StringSliceVar(&f.brokers, "brokers", nil, "brokers, host:port")
	fl.StringVar(&f.topic, "topic", "", "topic")
	fl.IntVar(&f.partition, "partition", 0, "partition (default: the stream's first, else 0)")
	fl.StringVar(&f.codec, "codec", "json", "form of the records: json, json-array, csv, float64 or float32")
	fl.StringVar(&f.csv, "csv", "", "CSV file")
	fl.StringVar(&f.ndjson, "ndjson", "", "file of one JSON document a line, sent as they are")
	fl.StringVar(&f.header, "header", "auto", "whether the CSV file has a header: auto, yes or no")
	fl.StringSliceVar(&f.columns, "columns", nil, "columns of the CSV file, names or 1-based numbers (default: the stream's, else all)")
	fl.IntVar(&f.rate, "rate", 0, "records a second (default: as fast as possible)")
	fl.BoolVar(&f.create, "create", false, "create the topic where it is missing, with the cluster's defaults")
	return c
}

func (g *globals) feed(ctx context.Context, f *feedFlags, choosesPartition bool) error {
	if (f.csv == "") == (f.ndjson == "") {
		return usagef("give either --csv FILE or --ndjson FILE")
	}
	if !slices.Contains([]string{"auto", "yes", "no"}, f.header) {
		return usagef("--header is %q, must be auto, yes or no", f.header)
	}
	if f.rate < 0 {
		return usagef("--rate is %d, must be at least 0", f.rate)
	}
	cluster := kafka.Options{Brokers: f.brokers}
	if f.stream != "" {
		cfg, err := g.load()
		if err != nil {
			return err
		}
		s := cfg.Stream(f.stream)
		if s == nil {
			return noStream(cfg, f.stream)
		}
		if s.Gradients() {
			return usagef("stream %s takes gradients, which its trainer sends: a file has none", f.stream)
		}
		if cluster, err = stream.Cluster(cfg); err != nil {
			return err
		}
		f.topic, f.codec = s.Input.Topic, s.Input.Codec
		if !choosesPartition {
			f.partition = s.Input.Partitions[0]
		} else if !slices.Contains(s.Input.Partitions, f.partition) {
			return usagef("stream %s does not read partition %d", f.stream, f.partition)
		}
		switch {
		case f.columns != nil || f.codec == "csv":
		case f.codec == "json":
			f.columns = s.Input.Columns
		default:
			f.labels = s.Input.Columns
		}
	}
	if len(cluster.Brokers) == 0 || f.topic == "" {
		return usagef("--brokers and --topic are needed, or -c FILE and --stream")
	}
	if !slices.Contains([]string{"json", "json-array", "csv", "float64", "float32"}, f.codec) {
		return usagef("--codec is %q, must be json, json-array, csv, float64 or float32", f.codec)
	}
	if f.ndjson != "" && f.codec != "json" && f.codec != "json-array" {
		return usagef("--ndjson goes with codec json or json-array, not %s", f.codec)
	}
	cluster.ClientID = "streamdp-feed"
	client, err := kafka.NewClient(cluster)
	if err != nil {
		return usageError{err}
	}
	defer client.Close()
	if err := client.Probe(ctx); err != nil {
		return err
	}
	next, read, size, done, err := f.source()
	if err != nil {
		return err
	}
	defer done()
	if f.create {
		t, err := client.Topic(ctx, f.topic)
		if err == nil && !t.Exists {
			err = client.CreateTopic(ctx, f.topic, f.partition+1, nil)
		}
		if err != nil {
			return err
		}
	}

	bar := progress(g.stderr, size, "feeding")
	s := &sender{client: client, topic: f.topic, partition: int32(f.partition), rate: f.rate, started: time.Now()}
	for {
		value, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := s.send(ctx, value); err != nil {
			return err
		}
		if s.count%1000 == 0 {
			bar.Set64(read.n)
		}
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	bar.Finish()
	fmt.Fprintf(g.stderr, "%d records sent to %s/%d in %s\n", s.count, f.topic, f.partition, time.Since(s.started).Round(time.Millisecond))
	return nil
}

// source returns the values of the records.
func (f *feedFlags) source() (next func() ([]byte, error), read *counter, size int64, done func() error, err error) {
	if f.ndjson != "" {
		r, read, size, done, err := openFile(f.ndjson)
		if err != nil {
			return nil, nil, 0, nil, err
		}
		return lines(r), read, size, done, nil
	}
	t, err := openTable(f.csv, f.header, f.columns)
	if err == nil && f.labels != nil {
		err = t.label(f.csv, f.labels)
	}
	if err != nil {
		return nil, nil, 0, nil, err
	}
	return func() ([]byte, error) {
		line, err := t.next()
		if err != nil {
			return nil, err
		}
		if f.codec == "csv" && f.columns == nil {
			return encodeRow("csv", t.header, line), nil
		}
		return encodeRow(f.codec, t.names, t.picked(line)), nil
	}, t.read, t.size, t.close, nil
}

// lines returns the lines of r that are not empty.
func lines(r io.Reader) func() ([]byte, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	return func() ([]byte, error) {
		for {
			line, err := in.ReadBytes('\n')
			line = bytes.TrimRight(line, "\r\n")
			if len(line) > 0 {
				return line, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// sender sends records in batches, at a rate if there is one.
type sender struct {
	client    *kafka.Client
	topic     string
	partition int32
	rate      int
	started   time.Time
	count     int
	batch     []kafka.Message
	bytes     int
}

func (s *sender) send(ctx context.Context, value []byte) error {
	s.batch = append(s.batch, kafka.Message{Value: value, Time: time.Now().Truncate(time.Millisecond)})
	s.bytes += len(value)
	s.count++
	limit := 5000
	if s.rate > 0 {
		limit = min(limit, max(1, s.rate/20))
	}
	if len(s.batch) < limit && s.bytes < 500_000 {
		return nil
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	if s.rate > 0 {
		due := s.started.Add(time.Duration(float64(s.count) / float64(s.rate) * float64(time.Second)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
	}
	return ctx.Err()
}

func (s *sender) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	var pause kafka.Backoff
	for {
		_, err := s.client.Produce(ctx, s.topic, s.partition, s.batch)
		if err == nil {
			s.batch, s.bytes = s.batch[:0], 0
			return nil
		}
		if kafka.UnknownTopic(err) {
			if t, err := s.client.Topic(ctx, s.topic); err == nil && !t.Exists {
				return fmt.Errorf("topic %s does not exist: create it first, or give --create", s.topic)
			}
			return fmt.Errorf("topic %s has no partition %d", s.topic, s.partition)
		}
		if !kafka.Retriable(err) {
			return err
		}
		if e := pause.Wait(ctx); e != nil {
			return errors.Join(e, err)
		}
	}
}

// progress returns a bar on a terminal, and one that shows nothing elsewhere.
func progress(w io.Writer, total int64, what string) *progressbar.ProgressBar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || total <= 0 {
		return progressbar.DefaultBytesSilent(max(total, 1))
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(30),
		progressbar.OptionEnableColorCodes(os.Getenv("NO_COLOR") == ""))
}
