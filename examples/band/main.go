// Command band draws one released value over the number of records that it covers. A band shows its noise: the release
// plus and minus 1.96 standard errors.
//
//	streamdp replay -c orders.toml orders.csv | go run ./examples/band -value mean_original -entry 0 -o mean.svg
//
// It reads releases from standard input, one JSON object per line: the output of streamdp replay, or that of a Kafka
// console consumer on a topic. It also reads the newest releases of a running daemon, an object with a list under
// "data":
//
//	curl -s 'http://127.0.0.1:9464/api/v1/streams/orders/releases' | go run ./examples/band
//
// If a release appears twice, band uses the first copy, because both have the same bytes.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/streamdp/streamdp/internal/chart"
)

// release holds the fields of a release that the picture needs (docs/release.md).
type release struct {
	Partition int
	Epoch     uint64
	Step      uint64
	Covers    [2]float64
	Columns   []string
	Values    map[string]struct {
		Data []float64
		SE   standardErrors
	}
}

// standardErrors holds standard errors: one number for all entries, or one for each.
type standardErrors []float64

// UnmarshalJSON implements json.Unmarshaler.
func (e *standardErrors) UnmarshalJSON(text []byte) error {
	var one float64
	if string(text) != "null" && json.Unmarshal(text, &one) == nil {
		*e = standardErrors{one}
		return nil
	}
	return json.Unmarshal(text, (*[]float64)(e))
}

func main() {
	value := flag.String("value", "mean", "released value to draw")
	entry := flag.Int("entry", 0, "index of the number in the value, from 0")
	skip := flag.Int("skip", 0, "number of first releases to omit: their bands are the widest")
	out := flag.String("o", "band.svg", "file to write, .svg or .png")
	flag.Parse()
	if err := run(os.Stdin, *value, *entry, *skip, *out); err != nil {
		fmt.Fprintln(os.Stderr, "band:", err)
		os.Exit(1)
	}
}

// run reads releases and writes the plot.
func run(in io.Reader, value string, entry, skip int, out string) error {
	all, err := read(in)
	if err != nil {
		return err
	}
	c, err := band(all, value, entry, skip)
	if err != nil {
		return err
	}
	return c.Write(out, 18, 9)
}

// read returns the releases of the newest epoch, each once, ordered by step.
func read(in io.Reader) ([]release, error) {
	var all []release
	for dec := json.NewDecoder(in); ; {
		var r struct {
			release
			Data []release // the answer of a daemon
		}
		err := dec.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if r.Data != nil {
			all = append(all, r.Data...)
		} else {
			all = append(all, r.release)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no release; streamdp status shows what the stream waits for")
	}
	newest := slices.MaxFunc(all, func(a, b release) int { return cmp.Compare(a.Epoch, b.Epoch) }).Epoch
	all = slices.DeleteFunc(all, func(r release) bool { return r.Epoch != newest || r.Partition != all[0].Partition })
	slices.SortStableFunc(all, func(a, b release) int { return cmp.Compare(a.Step, b.Step) })
	return slices.CompactFunc(all, func(a, b release) bool { return a.Step == b.Step }), nil
}

// band returns the picture of one entry of a value.
func band(all []release, value string, entry, skip int) (*chart.Chart, error) {
	var x, y, low, high []float64
	name := value
	for _, r := range all {
		v, ok := r.Values[value]
		if !ok {
			continue // a step without this value
		}
		if entry < 0 || entry >= len(v.Data) {
			return nil, fmt.Errorf("%s has %d entries, so there is no entry %d", value, len(v.Data), entry)
		}
		if skip > 0 {
			skip--
			continue
		}
		if len(v.Data) == len(r.Columns) {
			name = value + " of " + r.Columns[entry]
		}
		x, y = append(x, r.Covers[1]-r.Covers[0]), append(y, v.Data[entry])
		var se float64
		switch len(v.SE) {
		case 0:
			return nil, fmt.Errorf("%s has no standard error, so there is no band to draw", value)
		case 1: // one number for all entries
			se = v.SE[0]
		default:
			se = v.SE[entry]
		}
		low, high = append(low, y[len(y)-1]-1.96*se), append(high, y[len(y)-1]+1.96*se)
	}
	if len(x) == 0 {
		return nil, fmt.Errorf("no release has a value %s", value)
	}
	return &chart.Chart{
		X: "records", Y: name,
		Lines: []chart.Line{
			{Name: "released", X: x, Y: y, Bold: true},
			{Name: "+ 1.96 standard errors", X: x, Y: high, Dashed: true},
			{Name: "− 1.96 standard errors", X: x, Y: low, Dashed: true},
		},
	}, nil
}
