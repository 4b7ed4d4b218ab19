package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/recovery"
)

// TestMergeRefit: windows over three partitions give one sequence of regressions, with each solver that works on sums.
// Restarts, also in the middle of a window, and another pace of reading give the same bytes. verify computes the same
// bytes, and the release states the window's offsets in each partition.
func TestMergeRefit(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]string{
		"newton":         "window = 100",
		"with a stride":  "window = 80\nstride = 100\nintercept = false",
		"adassp":         "window = 100\nsolver = \"adassp\"",
		"dp-gd-residual": "window = 100\nsolver = \"dp-gd-residual\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewMergedRig(t, fixtures.MergedRefit(keys), 3)
			r.SendTo(0, 0, 350)
			r.SendTo(1, 1000, 130)
			r.SendTo(2, 2000, 250)
			x := r.Start()
			x.Published(1)
			x.End()
			r.SendTo(1, 1130, 200)
			x = r.Start()
			x.Published(2)
			r.SendTo(2, 2250, 100)
			x.Published(3)
			x.End()
			out := r.OutputOf("orders.dp")
			if len(out) != 3 {
				t.Fatalf("%d releases", len(out))
			}
			rows, first := 300, 200
			if name == "with a stride" {
				rows, first = 240, 200
			}
			third := fixtures.Published{Key: "k", Value: out["orders/merged/1/3"]}
			rel := third.Parse(t)
			end := first + rows/3
			for p := range 3 {
				if want := fmt.Sprintf(`{"partition":%d,"offsets":[%d,%d],"covers":[0,%d]}`, p, first, end,
					end); !strings.Contains(third.Value, want) {
					t.Errorf("step 3 lacks %s: %s", want, third.Value)
				}
			}
			if rel.Rows != uint64(rows) || rel.Offsets != [2]int64{int64(3 * first), int64(3 * end)} {
				t.Errorf("step 3 has %d rows of %v", rel.Rows, rel.Offsets)
			}
			for _, v := range rel.Values["theta"].Data {
				if math.IsNaN(v) || v == 0 {
					t.Errorf("theta is %v", rel.Values["theta"].Data)
				}
			}
			fixtures.Conforms(t, third.Value)
			o := r.Options()
			all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
				fixtures.MergedTask)
			if err != nil || len(all) != 1 || all[0].Releases != 3 || all[0].Difference+all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
			s := r.Sibling(
				fixtures.With(fixtures.MergedRefit(keys), `"orders.dp"`, `"second.dp"`, "merge = true",
					"merge = true\nmerge_ahead = 1"))
			y := s.Start()
			y.Published(3)
			y.End()
			if again := s.OutputOf("second.dp"); fmt.Sprint(again) != fmt.Sprint(out) {
				t.Error("reading at another pace gives other bytes")
			}
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.MergedTask, epoch.OpenRequest{})
			}))
			for _, p := range openingOn(r, 2).Parts {
				if p.First != int64(end) || p.Incarnation != 1 {
					t.Errorf("epoch 2 begins with %+v", p)
				}
			}
		})
	}
}

// TestMergeEqual puts the same records of the same steps into 1, 3 and 64 partitions, with an ε at which the noise is
// small. The releases have equal standard errors, and their values differ only by noise. moments.TestParts and
// refit.TestParts show that the integers are equal, in every pass of a regression too.
func TestMergeEqual(t *testing.T) {
	t.Parallel()
	const rows = 192 // per step, over all partitions
	type value struct{ Data, SE []float64 }
	var want map[string]value
	for _, partitions := range []int{1, 3, 64} {
		text := fixtures.With(fixtures.MergedStream, "step = 100", fmt.Sprint("step = ", rows/partitions),
			"epsilon = 1.0", "epsilon = 30", "limit_epsilon = 3.0", "limit_epsilon = 30",
			`"orders.dp" }`, `"orders.dp", values = ["mean", "second_moment"] }`)
		r := streamtest.NewMergedRig(t, text, partitions)
		for p := range partitions {
			var list []kafka.Message
			for i := p; i < 2*rows; i += partitions {
				list = append(list, kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)})
			}
			_, err := r.Client.Produce(t.Context(), "orders", int32(p), list)
			fixtures.Must(t, err)
		}
		x := r.Start()
		x.Published(2)
		x.End()
		var rel struct {
			Rows   int
			Values map[string]struct {
				Data []float64
				SE   json.RawMessage
			}
		}
		fixtures.Must(t, json.Unmarshal([]byte(r.OutputOf("orders.dp")["orders/merged/1/2"]), &rel))
		got := map[string]value{}
		for name, v := range rel.Values {
			se := make([]float64, len(v.Data))
			if err := json.Unmarshal(v.SE, &se); err != nil { // one for all values
				fixtures.Must(t, json.Unmarshal(v.SE, &se[0]))
				for j := range se {
					se[j] = se[0]
				}
			}
			got[name] = value{v.Data, se}
		}
		if want == nil {
			want = got
		}
		if rel.Rows != rows || len(got) < 2 {
			t.Fatalf("%d rows, %d values", rel.Rows, len(got))
		}
		for name, v := range got {
			for j, x := range v.Data {
				se := want[name].SE[j]
				if se > 2e-3 || v.SE[j] != se {
					t.Errorf("%d partitions: the error of %s is %g, of one partition %g", partitions, name, v.SE[j], se)
				}
				// A false alarm has probability 1e-15 for each of 27 values.
				if off := math.Abs(x - want[name].Data[j]); off > 8*math.Sqrt2*se {
					t.Errorf("%d partitions: %s[%d] is off by %g, with errors of %g", partitions, name, j, off, se)
				}
			}
		}
	}
}
