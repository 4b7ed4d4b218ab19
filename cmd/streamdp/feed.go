package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/feed"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"golang.org/x/term"
)

// feedCodecs are the codecs in which feed can write records.
var feedCodecs = []string{"json", "json-array", "csv", "float64", "float32"}

// feedFlags are the flags of feed.
type feedFlags struct {
	stream, topic, codec, csv, ndjson, header string
	brokers, columns                          []string
	partition, partitions                     int
	rate                                      int
	create                                    bool
	labels                                    []string // stream's columns, if records hold values without names
	texts                                     map[string]bool
}

func feedCommand(g *globals) *cobra.Command {
	var f feedFlags
	c := &cobra.Command{
		Use:   "feed (-c FILE --stream NAME | --brokers LIST --topic TOPIC) (--csv FILE | --ndjson FILE)",
		Short: "Send the rows of a file to a topic",
		Long: "Send the rows of a CSV file, or the lines of an NDJSON file, to a topic, in\n" +
			"order. The file may be compressed (.gz), or - for standard input. If a broker\n" +
			"fails, the request is repeated, which may write rows twice.\n\n" +
			"Each line becomes one record, whatever it contains. A line that is empty, not\n" +
			"CSV, or larger than the topic accepts becomes a record without a row, and a cell\n" +
			"that is not a number makes its record invalid. Both count as the zero row.\n\n" +
			"The topic must exist, unless --create creates it with the cluster's defaults.",
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range []string{"brokers", "topic", "codec"} {
				if f.stream != "" && c.Flags().Changed(name) {
					return exit.Usagef("--%s cannot be used with --stream, which takes it from the configuration", name)
				}
			}
			return g.feed(c.Context(), &f, c.Flags().Changed("partition"))
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.stream, "stream", "",
		"take brokers, topic, codec and, unless they are given, partition and columns from this stream of the "+
			"configuration")
	fl.StringSliceVar(&f.brokers, "brokers", nil, "brokers, host:port")
	fl.StringVar(&f.topic, "topic", "", "topic")
	fl.IntVar(&f.partition, "partition", 0, "partition (default: the stream's first, else 0)")
	fl.StringVar(&f.codec, "codec", "json", "form of the records: "+strings.Join(feedCodecs, ", "))
	fl.StringVar(&f.csv, "csv", "", "CSV file")
	fl.StringVar(&f.ndjson, "ndjson", "", "file with one JSON document per line; each is sent unchanged")
	fl.StringVar(&f.header, "header", "auto", "whether the CSV file has a header: "+table.HeaderUsage)
	fl.StringSliceVar(&f.columns, "columns", nil,
		"columns of the CSV file, names or 1-based numbers (default: the stream's, else all)")
	fl.IntVar(&f.rate, "rate", 0, "records per second (default: as fast as possible)")
	fl.BoolVar(&f.create, "create", false, "create a missing topic, with the cluster's defaults")
	fl.IntVar(&f.partitions, "partitions", 0,
		"with --create: number of partitions of the new topic (default: just enough for --partition)")
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
		return exit.Usage{Err: err}
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
	begun := time.Now()
	s := feed.NewSender(client, f.topic, int32(f.partition), f.rate)
	if err := s.SendAll(ctx, next, func() { bar.Set64(read.Position()) }); err != nil {
		return err
	}
	bar.Finish()
	fmt.Fprintf(g.stderr, "%s sent to %s/%d in %g s\n", words.Plural(s.Count(), "record"), f.topic, f.partition,
		wholeSeconds(begun))
	return nil
}

// checkFile checks the flags that select the file to send.
func (f *feedFlags) checkFile() error {
	switch {
	case (f.csv == "") == (f.ndjson == ""):
		return exit.Usagef("give either --csv FILE or --ndjson FILE")
	case f.partitions != 0 && !f.create:
		return exit.Usagef("--partitions needs --create: the partitions of an existing topic do not change")
	case f.partitions < 0:
		return exit.Usagef("--partitions is %d, must be at least 1", f.partitions)
	case f.rate < 0:
		return exit.Usagef("--rate is %d, must be at least 0", f.rate)
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
		return exit.Usagef("stream %s reads gradients, which only its trainer can send", f.stream)
	}
	f.topic, f.codec = s.Input.Topic, s.Input.Codec
	if !choosesPartition {
		f.partition = s.Input.First()
	} else if !s.Input.Reads(f.partition) {
		return exit.Usagef("stream %s does not read partition %d", f.stream, f.partition)
	}
	if f.columns == nil {
		f.name(s.Input.Fields())
		f.texts = texts(s)
	}
	return nil
}

// name labels the numbers of a record with the names of a stream's columns, in the form that its codec requires.
func (f *feedFlags) name(columns []string) {
	switch f.codec {
	case "csv": // needs no names: lines are sent unchanged
	case "json":
		f.columns = columns
	default:
		f.labels = columns
	}
}

// checkTopic checks the flags that say where to send records, and in which form.
func (f *feedFlags) checkTopic(brokers []string) error {
	switch {
	case len(brokers) == 0 || f.topic == "":
		return exit.Usagef("give --brokers and --topic, or -c FILE and --stream")
	case !slices.Contains(feedCodecs, f.codec):
		return exit.Usagef("--codec is %q, must be one of %s", f.codec, strings.Join(feedCodecs, ", "))
	case f.ndjson != "" && f.codec != "json" && f.codec != "json-array":
		return exit.Usagef("--ndjson needs codec json or json-array, not %s", f.codec)
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

// source opens the input. next yields the values of the records.
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
		columns = []string{"1"} // lines are sent unchanged; their number of columns is unknown
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

// lines returns a function that yields the lines of r.
func lines(r io.Reader) func() ([]byte, error) {
	in := table.NewLines(r)
	return func() ([]byte, error) {
		line, err := in.Next()
		if err != nil {
			return nil, err
		}
		return append([]byte{}, line...), nil // an empty line is an empty value, not a tombstone
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
