package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"golang.org/x/term"
)

// feedCodecs are the forms of a record that feed can write.
var feedCodecs = []string{"json", "json-array", "csv", "float64", "float32"}

// feedFlags are the flags of feed.
type feedFlags struct {
	stream, topic, codec, csv, ndjson, header string
	brokers, columns                          []string
	partition, partitions                     int
	rate                                      int
	create                                    bool
	labels                                    []string // of the stream's columns, where records hold them without names
	texts                                     map[string]bool
}

func feedCommand(g *globals) *cobra.Command {
	var f feedFlags
	c := &cobra.Command{
		Use:   "feed (-c FILE --stream NAME | --brokers LIST --topic TOPIC) (--csv FILE | --ndjson FILE)",
		Short: "Send the rows of a file to a topic",
		Long: "Send the rows of a CSV file, or the lines of an NDJSON file, to a topic, in\n" +
			"order. A file may be compressed (.gz) or - for standard input. If a broker\n" +
			"fails, a request is sent again: rows may then be there twice.\n\n" +
			"Each line is one record, whatever it holds: a line that is empty, no CSV, or\n" +
			"larger than the topic accepts becomes a record without a row, and a cell that is\n" +
			"no number makes its record invalid. Both count as the zero row.\n\n" +
			"The topic must exist, or --create makes it with the cluster's defaults.",
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
	fl.StringVar(&f.codec, "codec", "json", "form of the records: "+strings.Join(feedCodecs, ", "))
	fl.StringVar(&f.csv, "csv", "", "CSV file")
	fl.StringVar(&f.ndjson, "ndjson", "", "file of one JSON document a line, sent as they are")
	fl.StringVar(&f.header, "header", "auto", "whether the CSV file has a header: "+table.HeaderUsage)
	fl.StringSliceVar(&f.columns, "columns", nil, "columns of the CSV file, names or 1-based numbers (default: the stream's, else all)")
	fl.IntVar(&f.rate, "rate", 0, "records a second (default: as fast as possible)")
	fl.BoolVar(&f.create, "create", false, "create the topic where it is missing, with the cluster's defaults")
	fl.IntVar(&f.partitions, "partitions", 0, "with --create: how many partitions the new topic has (default: as many as it takes to have --partition)")
	return c
}

// feed sends the records of a file to a topic.
func (g *globals) feed(ctx context.Context, f *feedFlags, choosesPartition bool) error {
	if err := f.checkFile(); err != nil {
		return err
	}
	cluster := kafka.Options{Brokers: f.brokers}
	if f.stream != "" {
		cfg, err := g.load()
		if err != nil {
			return err
		}
		if err := f.fromStream(cfg, choosesPartition); err != nil {
			return err
		}
		if cluster, err = connect.Cluster(cfg); err != nil {
			return err
		}
	}
	if err := f.checkTopic(cluster.Brokers); err != nil {
		return err
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
		if err := f.createTopic(ctx, client); err != nil {
			return err
		}
	}

	bar := progress(g.stderr, size, "feeding")
	s := &sender{client: client, topic: f.topic, partition: int32(f.partition), rate: f.rate, started: time.Now()}
	if err := s.sendAll(ctx, next, func() { bar.Set64(read.Position()) }); err != nil {
		return err
	}
	bar.Finish()
	fmt.Fprintf(g.stderr, "%s sent to %s/%d in %g s\n", words.Plural(s.count, "record"), f.topic, f.partition, wholeSeconds(s.started))
	return nil
}

// checkFile checks the flags that say what to send.
func (f *feedFlags) checkFile() error {
	switch {
	case (f.csv == "") == (f.ndjson == ""):
		return usagef("give either --csv FILE or --ndjson FILE")
	case f.partitions != 0 && !f.create:
		return usagef("--partitions is for --create: a topic that is there keeps its partitions")
	case f.partitions < 0:
		return usagef("--partitions is %d, must be at least 1", f.partitions)
	case f.rate < 0:
		return usagef("--rate is %d, must be at least 0", f.rate)
	}
	return table.CheckHeader(f.header)
}

// fromStream takes topic, codec, partition and columns from a stream.
func (f *feedFlags) fromStream(cfg *config.Config, choosesPartition bool) error {
	s := cfg.Named(f.stream)
	if s == nil {
		return noStream(cfg, f.stream)
	}
	if s.Gradients() {
		return usagef("stream %s takes gradients, which its trainer sends: a file has none", f.stream)
	}
	f.topic, f.codec = s.Input.Topic, s.Input.Codec
	if !choosesPartition {
		f.partition = s.Input.First()
	} else if !s.Input.Reads(f.partition) {
		return usagef("stream %s does not read partition %d", f.stream, f.partition)
	}
	if f.columns == nil {
		f.name(s.Input.Fields())
		f.texts = texts(s)
	}
	return nil
}

// name names the numbers of the records after the columns of a stream, in the way that its
// codec wants.
func (f *feedFlags) name(columns []string) {
	switch f.codec {
	case "csv": // lines go as they are
	case "json":
		f.columns = columns
	default:
		f.labels = columns
	}
}

// checkTopic checks the flags that say where to send, and in which form.
func (f *feedFlags) checkTopic(brokers []string) error {
	switch {
	case len(brokers) == 0 || f.topic == "":
		return usagef("--brokers and --topic are needed, or -c FILE and --stream")
	case !slices.Contains(feedCodecs, f.codec):
		return usagef("--codec is %q, must be one of %s", f.codec, strings.Join(feedCodecs, ", "))
	case f.ndjson != "" && f.codec != "json" && f.codec != "json-array":
		return usagef("--ndjson goes with codec json or json-array, not %s", f.codec)
	}
	return nil
}

// createTopic creates the topic if it is missing.
func (f *feedFlags) createTopic(ctx context.Context, client *kafka.Client) error {
	t, err := client.Topic(ctx, f.topic)
	if err == nil && !t.Exists {
		err = client.CreateTopic(ctx, f.topic, max(f.partitions, f.partition+1), nil)
	}
	return err
}

// source returns the values of the records.
func (f *feedFlags) source() (next func() ([]byte, error), read *table.File, size int64, done func() error, err error) {
	if f.ndjson != "" {
		file, err := table.OpenFile(f.ndjson)
		if err != nil {
			return nil, nil, 0, nil, err
		}
		return lines(file), file, file.Size, file.Close, nil
	}
	whole, columns := f.codec == "csv" && f.columns == nil, f.columns
	if whole && f.header == "no" {
		columns = []string{"1"} // lines go as they are, and none says how many columns there are
	}
	t, err := table.Open(f.csv, f.header, columns)
	if err == nil && f.labels != nil {
		err = t.Label(f.csv, f.labels)
	}
	if err != nil {
		return nil, nil, 0, nil, err
	}
	encode := codec.NewEncoder(f.codec, t.Names, f.texts)
	return func() ([]byte, error) {
		line, err := t.Next()
		if err != nil {
			return nil, err
		}
		if whole {
			return encode.Encode(line), nil
		}
		return encode.Encode(t.Picked(line)), nil
	}, t.File(), t.File().Size, t.Close, nil
}

// lines returns the lines of r.
func lines(r io.Reader) func() ([]byte, error) {
	in := table.NewLines(r)
	return func() ([]byte, error) {
		line, err := in.Next()
		if err != nil {
			return nil, err
		}
		return append([]byte{}, line...), nil // an empty line is an empty value, and no tombstone
	}
}

// sender sends records in batches, at the wanted rate if one is given.
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

// sendAll sends all records, and reports after every thousand.
func (s *sender) sendAll(ctx context.Context, next func() ([]byte, error), tell func()) error {
	for {
		value, err := next()
		if err == io.EOF {
			return s.flush(ctx)
		}
		if err != nil {
			return err
		}
		if err := s.send(ctx, value); err != nil {
			return err
		}
		if s.count%1000 == 0 {
			tell()
		}
	}
}

func (s *sender) send(ctx context.Context, value []byte) error { return s.sendOf(ctx, nil, value) }

// sendOf sends a record with a key, nil for none.
func (s *sender) sendOf(ctx context.Context, key, value []byte) error {
	s.batch = append(s.batch, kafka.Message{Key: key, Value: value, Time: time.Now().Truncate(time.Millisecond)})
	s.bytes += len(key) + len(value)
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

// flush sends the batch. If a record is larger than the topic accepts, flush sends an empty
// record in its place: the content of one record must not stop the others.
func (s *sender) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	var pause kafka.Backoff
	for rest := s.batch; ; {
		_, err := s.client.Produce(ctx, s.topic, s.partition, rest)
		if err == nil {
			s.batch, s.bytes = s.batch[:0], 0
			return nil
		}
		if large, ok := errors.AsType[*kafka.TooLargeError](err); ok && len(rest[large.Index].Value) > 0 {
			rest = rest[large.Index:] // those before it were appended
			rest[0].Value = []byte{}
			continue
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

// progress returns a progress bar. Without a terminal it shows nothing.
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
