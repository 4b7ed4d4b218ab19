package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"streamdp/dp"
	"streamdp/stream"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	stream, header string
	seed           uint64
	seeded         bool
	diagnostics    bool
}

func replayCommand(g *globals) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay -c FILE --stream NAME [RECORDS]",
		Short: "Run a stream's estimator on a file, without Kafka",
		Long: "Run a stream's estimator on the records of a file, or of standard input, and\n" +
			"print its releases, one JSON object a line: the same decoder, estimator and\n" +
			"format as run has, from the first record on. There is no Kafka, no state and\n" +
			"no ledger.\n\n" +
			"A file whose name ends in .csv or .csv.gz is read as feed reads it. Any other\n" +
			"holds the values of records as the stream's codec has them: one a line, or for\n" +
			"float64 and float32 one after the other.\n\n" +
			"Every run draws keys of its own and forgets them: it is a mechanism beside\n" +
			"everything else that reads these records, and costs its (epsilon, delta) again.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f.seeded = c.Flags().Changed("insecure-seed")
			file := "-"
			if len(args) == 1 {
				file = args[0]
			}
			return g.replay(c.Context(), &f, file)
		},
	}
	c.Flags().StringVar(&f.stream, "stream", "", "stream of the configuration (default: the only one)")
	c.Flags().StringVar(&f.header, "header", "auto", "whether a CSV file has a header: auto, yes or no")
	c.Flags().BoolVar(&f.diagnostics, "insecure-diagnostics", false, "say how many records gave no row, and why, which is an exact function of them")
	c.Flags().Uint64Var(&f.seed, "insecure-seed", 0, "derive keys from a number: reproducible, and protecting nothing")
	return c
}

func (g *globals) replay(ctx context.Context, f *replayFlags, file string) error {
	if !slices.Contains([]string{"auto", "yes", "no"}, f.header) {
		return usagef("--header is %q, must be auto, yes or no", f.header)
	}
	cfg, err := g.load()
	if err != nil {
		return err
	}
	if f.stream == "" && len(cfg.Streams) == 1 {
		f.stream = cfg.Streams[0].Name
	}
	s := cfg.Stream(f.stream)
	if s == nil {
		return noStream(cfg, f.stream)
	}
	if s.Gradients() {
		return usagef("stream %s takes gradients at its own releases, each with a header: a file has none", s.Name)
	}
	next, read, size, done, err := values(file, f.header, s.Input.Codec, s.Input.Columns)
	if err != nil {
		return err
	}
	defer done()
	out := bufio.NewWriterSize(g.stdout, 1<<16)
	releases := 0
	var seed *uint64
	if f.seeded {
		seed = &f.seed
	}
	r, err := stream.NewReplay(s, version(), seed, func(release []byte) error {
		releases++
		out.Write(release)
		return out.WriteByte('\n')
	})
	if err != nil {
		return configError{fmt.Errorf("stream %s: %w", s.Name, err)}
	}
	defer r.Close()

	bar := progress(g.stderr, size, "replaying")
	ended := false
	for n := 0; ctx.Err() == nil; n++ {
		value, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := r.Add(value); errors.Is(err, dp.ErrExhausted) {
			ended = true
			break
		} else if err != nil {
			return err
		}
		if n%1000 == 999 {
			bar.Set64(read.n)
		}
	}
	bar.Finish()
	if err := errors.Join(out.Flush(), ctx.Err()); err != nil {
		return err
	}
	all, open := r.Records()
	fmt.Fprintf(g.stderr, "%d records, %d releases", all, releases)
	if open > 0 {
		fmt.Fprintf(g.stderr, "; the last %d records do not fill a step", open)
	}
	if ended {
		fmt.Fprint(g.stderr, "; the file goes on behind the horizon")
	}
	if f.diagnostics {
		fmt.Fprintf(g.stderr, "\nnot private: %s", rejections(r.Rejected()))
	}
	fmt.Fprintf(g.stderr, "\nwhoever publishes these releases has spent (%g, %g), %s, on each record once more\n",
		s.Privacy.Epsilon, s.Privacy.Delta, s.Privacy.Adjacency)
	if f.seeded {
		fmt.Fprintln(g.stderr, "INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	return nil
}

// rejections says how many records gave no row, by reason.
func rejections(found map[string]int64) string {
	if len(found) == 0 {
		return "every record gave a row"
	}
	var list []string
	total := int64(0)
	for _, why := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%s %d", why, found[why]))
		total += found[why]
	}
	return fmt.Sprintf("%d records gave no row (%s)", total, strings.Join(list, ", "))
}

// values returns the values of a file's records.
func values(file, header, codec string, columns []string) (next func() ([]byte, error), read *counter, size int64, done func() error, err error) {
	if name := strings.TrimSuffix(file, ".gz"); strings.HasSuffix(name, ".csv") {
		f := feedFlags{csv: file, header: header, codec: codec}
		if codec == "json" {
			f.columns = columns
		}
		return f.source()
	}
	r, read, size, done, err := openFile(file)
	if err != nil {
		return nil, nil, 0, nil, err
	}
	width := map[string]int{"float64": 8, "float32": 4}[codec] * len(columns)
	if width == 0 {
		return lines(r), read, size, done, nil
	}
	in, value := bufio.NewReaderSize(r, 1<<16), make([]byte, width)
	return func() ([]byte, error) {
		if _, err := io.ReadFull(in, value); errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%s ends in the middle of a record of %d bytes", file, width)
		} else if err != nil {
			return nil, err
		}
		return value, nil
	}, read, size, done, nil
}
