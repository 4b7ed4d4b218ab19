package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/replay"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/internal/truth"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/dryrun"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	stream, header   string
	boundaries, time string
	seed             uint64
	seeded           bool
	diagnostics      bool
}

// fewerForWarmup advises the user whose file has fewer records than the warm-up reads.
const fewerForWarmup = "the key warmup sets how many it takes; streamdp plan shows how many it needs"

func replayCommand(g *globals) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay -c FILE --stream NAME [RECORDS]",
		Short: "Run a stream's estimator on a file, without Kafka",
		Long: "Run a stream's estimator on the records of a file or of standard input, and\n" +
			"print its releases, one JSON object per line. Decoder, estimator and format are\n" +
			"those of streamdp run. There is no Kafka, no state and no ledger.\n\n" +
			"A file whose name ends in .csv or .csv.gz is read as feed reads it. Any other\n" +
			"file holds the values of records in the stream's codec: one per line, where an\n" +
			"empty line is an empty record, or without separators for float64 and float32.\n" +
			"With avro, protobuf, and json-schema with a header, each value follows its\n" +
			"length in four bytes, as kcat -f '%R%s' writes it. With framing \"confluent\" the\n" +
			"schemas come from the registry.\n\n" +
			"Steps by the clock end where those of published releases did (--boundaries), or\n" +
			"by the times in the records (--time). Those times decide which records a step\n" +
			"holds, so the guarantee treats them as public, like arrival times.\n\n" +
			"Every run draws its own keys and forgets them. So each run costs its (epsilon,\n" +
			"delta) again, in addition to all other uses of these records.",
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
	c.Flags().StringVar(&f.header, "header", "auto", "whether a CSV file has a header: "+table.HeaderUsage)
	c.Flags().StringVar(&f.boundaries, "boundaries", "",
		"for steps by the clock: file of the epoch's published releases, one JSON object per line, from step 1 on; "+
			"each step takes as many records as its release says")
	c.Flags().StringVar(&f.time, "time", "",
		"for steps by the clock: name of a record's time in JSON records or in the header of a CSV file: RFC 3339 "+
			"or seconds since 1970")
	c.Flags().BoolVar(&f.diagnostics, "insecure-diagnostics", false,
		"print how many records gave no row, and why; for moments also how many rows were shortened, and the truth "+
			"next to the last release: exact functions of the records, not private")
	c.Flags().Uint64Var(&f.seed, "insecure-seed", 0, "derive keys from a number: reproducible, but protects nothing")
	return c
}

func (g *globals) replay(ctx context.Context, f *replayFlags, file string) error {
	if err := table.CheckHeader(f.header); err != nil {
		return err
	}
	cfg, err := g.load()
	if err != nil {
		return err
	}
	if f.stream == "" && len(cfg.Streams) == 1 {
		f.stream = cfg.Streams[0].Name
	}
	s := cfg.Named(f.stream)
	if s == nil {
		return noStream(cfg, f.stream)
	}
	if s.Gradients() {
		return exit.Usagef("stream %s reads gradients, which depend on its own releases: no file can replace its "+
			"trainer", s.Name)
	}
	steps, columns, err := f.steps(s, file)
	if err != nil {
		return err
	}
	schemas, err := openSchemas(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer schemas.Close()
	next, read, size, done, err := values(file, f.header, &s.Input, columns, texts(s))
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
	var t *truth.Truth
	var last *truth.Release // the last release with values
	if f.diagnostics && s.Moments != nil && steps == nil {
		t = truth.New(s)
		t.Forget()
	}
	r, err := dryrun.NewReplay(schemas, s, version(), seed, func(release []byte) error {
		releases++
		if t != nil {
			p := new(truth.Release)
			if err := json.Unmarshal(release, p); err != nil {
				return err
			}
			if t.Found(p); len(p.Values) > 0 {
				last = p
			}
		}
		out.Write(release)
		return out.WriteByte('\n')
	})
	if err != nil {
		return exit.Config{Err: fmt.Errorf("stream %s: %w", s.Name, err)}
	}
	defer r.Close()
	if t != nil {
		r.Watch(t.Add)
	}

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
		err = nil
		if steps != nil {
			err = steps.Before(value, r.EndStep)
		}
		if err == nil {
			err = r.Add(value)
		}
		if errors.Is(err, dp.ErrExhausted) {
			ended = true
			break
		} else if err != nil {
			return err
		}
		if n%1000 == 999 {
			bar.Set64(read.Position())
		}
	}
	bar.Finish()
	if steps != nil && !ended && ctx.Err() == nil {
		if err := steps.End(r.EndStep); err != nil && !errors.Is(err, dp.ErrExhausted) {
			return err
		}
	}
	if err := errors.Join(out.Flush(), ctx.Err()); err != nil {
		return err
	}
	all, open := r.Records()
	fmt.Fprintf(g.stderr, "%s, %s", words.Plural(all, "record"), words.Plural(releases, "release"))
	switch {
	case open > 0 && releases == 0 && (s.Automatic() || s.Moments != nil && s.Moments.Automatic()):
		fmt.Fprintf(g.stderr, "; all of them belong to the warm-up, which takes %d (%s)", r.Warmup(), fewerForWarmup)
	case open > 0 && steps != nil:
		fmt.Fprintf(g.stderr, "; the last %d records belong to a step that has not ended", open)
	case open > 0:
		fmt.Fprintf(g.stderr, "; the last %d records do not fill a step", open)
	}
	switch {
	case r.Failed():
		fmt.Fprint(g.stderr, "; the warm-up found no bounds: its release gives the reason")
	case ended:
		fmt.Fprint(g.stderr, "; the file has further records after the horizon")
	}
	if steps != nil {
		fmt.Fprintf(g.stderr, "\nsteps end according to %s", steps.Says())
	}
	if f.diagnostics {
		fmt.Fprintf(g.stderr, "\nnot private: %s", rejections(r.Rejected()))
		if clipped, ok := r.Clipped(); ok {
			fmt.Fprintf(g.stderr, "\nnot private: rows shortened to the clip norm: %d", clipped)
		}
		if last != nil {
			fmt.Fprintf(g.stderr,
				"\nnot private: the last release, step %d, next to exact values of the rows, as they are and as "+
					"clipped\n",
				last.Step)
			if err := t.Print(g.stderr, last); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(g.stderr, "\npublishing these releases costs each record another (%g, %g), %s\n",
		s.Privacy.Epsilon, s.Privacy.Delta, s.Privacy.Adjacency)
	if f.seeded {
		fmt.Fprintln(g.stderr, "INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	return nil
}

// steps returns the ends of a file's steps by the clock, and the columns to read. The ends are nil if steps are not by
// the clock.
func (f *replayFlags) steps(s *config.Stream, file string) (*replay.Steps, []string, error) {
	columns := s.Input.Fields()
	period := s.Step.Clock()
	switch {
	case period == 0 && f.boundaries+f.time != "":
		return nil, nil,
			exit.Usagef(
				"--boundaries and --time are for steps by the clock; those of stream %s have a number of offsets",
				s.Name)
	case period == 0:
		return nil, columns, nil
	case (f.boundaries == "") == (f.time == ""):
		return nil, nil,
			exit.Usagef(
				"stream %s has steps by the clock: give either --boundaries or --time, to say where they "+
					"end in the file", s.Name)
	case f.time != "" && s.Input.Codec != "json":
		return nil, nil, exit.Usagef("--time needs names in records, which codec %q does not have: give --boundaries",
			s.Input.Codec)
	case f.time != "":
		if strings.HasSuffix(strings.TrimSuffix(file, ".gz"), ".csv") {
			columns = append(columns[:len(columns):len(columns)], f.time)
		}
		return replay.ByTimes(f.time, period, s.Slots()), columns, nil
	}
	steps, err := replay.ByReleases(f.boundaries)
	return steps, columns, err
}

// rejections formats the numbers of records that gave no row, by reason.
func rejections(found map[string]int64) string {
	if len(found) == 0 {
		return "every record gave a row"
	}
	total := int64(0)
	for _, n := range found {
		total += n
	}
	return fmt.Sprintf("%d records gave no row (%s)", total, byReason(found))
}

// values returns a function that yields the values of a file's records. columns are the paths of the values in a
// record; values at paths in `texts` stay text.
func values(file, header string, in *config.Input, columns []string,
	texts map[string]bool) (next func() ([]byte, error), read *table.File, size int64, done func() error, err error) {
	if name := strings.TrimSuffix(file, ".gz"); strings.HasSuffix(name, ".csv") && !in.Binary() {
		f := feedFlags{csv: file, header: header, codec: in.Codec, texts: texts}
		f.name(columns)
		return f.source()
	}
	r, err := table.OpenFile(file)
	if err != nil {
		return nil, nil, 0, nil, err
	}
	if in.Binary() {
		return sized(r, file), r, r.Size, r.Close, nil
	}
	width := map[string]int{"float64": 8, "float32": 4}[in.Codec] * len(columns)
	if width == 0 {
		return lines(r), r, r.Size, r.Close, nil
	}
	packed, value := bufio.NewReaderSize(r, 1<<16), make([]byte, width)
	return func() ([]byte, error) {
		if _, err := io.ReadFull(packed, value); errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%s ends in the middle of a record of %d bytes", file, width)
		} else if err != nil {
			return nil, err
		}
		return value, nil
	}, r, r.Size, r.Close, nil
}

// texts returns the paths of the columns whose values are categories.
func texts(s *config.Stream) map[string]bool {
	paths := map[string]bool{}
	for _, c := range s.Input.Specs() {
		if c.Type == "category" {
			paths[cmp.Or(c.Path, c.Name)] = true
		}
	}
	return paths
}

// sized returns a function that yields the values of a file's records. In the file each value follows its length: 4
// bytes, big-endian; length −1 is a tombstone. A value longer than table.MaxLine counts as an empty one.
func sized(r io.Reader, file string) func() ([]byte, error) {
	in, value := bufio.NewReaderSize(r, 1<<16), []byte(nil)
	no := func(what string) error {
		return fmt.Errorf(
			"%s %s: with this codec each record must follow its length in four bytes, as kcat -f '%%R%%s' writes it",
			file, what)
	}
	return func() ([]byte, error) {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err == io.EOF {
			return nil, err
		} else if err != nil {
			return nil, no("ends in the middle of a record's length")
		}
		n := int32(binary.BigEndian.Uint32(head[:]))
		switch {
		case n == -1:
			return nil, nil
		case n < 0:
			return nil, no("has no valid length where a record should begin")
		case n > table.MaxLine:
			if _, err := io.CopyN(io.Discard, in, int64(n)); err != nil {
				return nil, no("ends in the middle of a record")
			}
			return []byte{}, nil
		}
		if cap(value) < int(n) {
			value = make([]byte, n)
		}
		value = value[:n]
		if _, err := io.ReadFull(in, value); err != nil {
			return nil, no("ends in the middle of a record")
		}
		return value, nil
	}
}

// openSchemas loads the schemas of a stream's records.
func openSchemas(ctx context.Context, cfg *config.Config, s *config.Stream) (*connect.Schemas, error) {
	x, err := connect.OpenSchemas(cfg)
	if err != nil {
		return nil, err
	}
	if err := x.Look(ctx, s, 0); err != nil {
		x.Close()
		return nil, fmt.Errorf("stream %s: %w", s.Name, err)
	}
	return x, nil
}
