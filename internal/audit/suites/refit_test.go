package suites

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
)

// TestAuditFullMapOfRefits: if the map of persons may be full, a refit under zero-out has the noise of replace, and its
// audit uses the pairs of replace. With these pairs, the audit detects noise that would suffice only for zero-out.
func TestAuditFullMapOfRefits(t *testing.T) {
	t.Parallel()
	for solver, least := range map[string]float64{"newton": 0.85, "adassp": 0.49, "dp-gd": 0.6, "dp-gd-residual": 0.6} {
		stream := func(users int, adjacency string) *config.Stream {
			c, err := config.Parse("s.toml", fmt.Appendf(nil, `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "state"
key_file = "key"
[stream.s]
input = { topic = "in", columns = ["x", "y"] }
horizon = 50
user = { key = "record-key", cap = 2, max_users = %d }
privacy = { epsilon = 1.0, delta = 1e-6, adjacency = %q }
refit = { solver = %q, target = "y", clip_x = 1.0, clip_y = 1.0, window = 1000 }
`, users, adjacency, solver))
			if err != nil {
				t.Fatal(err)
			}
			return c.Streams[0]
		}
		run := func(s *config.Stream, judged dp.Adjacency) (worst float64) {
			suite, err := Of(s, Refit)
			if err != nil {
				t.Fatal(solver, err)
			}
			suite.Adjacency, suite.Others = judged, audit.NullPairs(1, 2, judged)
			suite.Quick, suite.Keys = true, audit.NewKeys([32]byte{12})
			found, err := suite.Run()
			if err != nil {
				t.Fatal(solver, err)
			}
			for _, f := range found {
				if f.Audit == "A0" && strings.HasPrefix(f.What, "sensitivity/mu") {
					worst = max(worst, f.Statistic)
				} else if !f.Passed {
					t.Errorf("%s: %s %s: %s", solver, f.Audit, f.What, f.Fault)
				}
			}
			return worst
		}
		full := stream(100, "zero-out")
		suite, err := Of(full, Refit)
		if err != nil || suite.Adjacency != dp.Replace {
			t.Fatalf("%s: a map that may be full is audited as %v, %v", solver, suite, err)
		}
		fits, roomy, other := run(full, suite.Adjacency), run(stream(50000, "zero-out"), dp.Replace),
			run(stream(100, "replace"), dp.Replace)
		t.Logf("%s: full %.4f of μ, as replace %.4f; under noise of zero-out %.4f", solver, fits, other, roomy)
		if fits > 1+1e-9 || fits < least || math.Abs(fits/other-1) > 1e-9 || roomy < 1.7*fits {
			t.Errorf(
				"%s: the worst pair is %.6f of μ where the map may be full, %.6f under replace, and %.6f under the "+
					"noise of zero-out", solver, fits, other, roomy)
		}
	}
}
