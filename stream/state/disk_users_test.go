package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// newUsersScenario is NewScenario for a stream that protects persons. With a cap above 0, the number of records per
// person is limited and the table of persons gets full. With cap 0, the records of a person only have a minimum
// separation.
func newUsersScenario(cap int) func(testing.TB) *streamtest.Scenario {
	user := "max_users = 20" // two steps
	if cap > 0 {
		user = fmt.Sprintf("cap = %d, max_users = 5", cap)
	}
	return func(t testing.TB) *streamtest.Scenario {
		return streamtest.NewScenarioOf(t, func(r *streamtest.Rig) {
			r.Toml = fixtures.With(r.Toml, `"zero-out"`, `"replace"`, "step = 10\n",
				"step = 10\nuser = { key = \"field:user\", separation = 2, "+user+" }\n")
			r.Record = fixtures.PersonRecord
		})
	}
}

// verifyUsers fails unless the output equals that of an uninterrupted run, and no file of persons outlives its epoch.
func verifyUsers(s *streamtest.Scenario, t testing.TB, refs []fixtures.EpochReference) {
	t.Helper()
	s.Same(t, refs)
	open := uint64(0)
	data, err := s.R.Disk.ReadFile(s.R.LedgerFile())
	fixtures.Must(t, err)
	l, err := ledger.Parse(data, nil)
	fixtures.Must(t, err)
	if newest := l.Newest(fixtures.OrdersTask); newest.Kind == ledger.KindOpen {
		open = newest.Epoch
	}
	files := s.R.Disk.(*simdisk.SimDisk).Holds(state.PersonsPrefix)
	if len(files) == 0 ||
		slices.ContainsFunc(files, func(name string) bool { return !strings.HasPrefix(name, state.UsersOf(open)) }) {
		t.Errorf("epoch %d is open, and there are %v", open, files)
	}
}

// TestUsersDiskCrashes stops the machine before operations on files of persons and checkpoints, in the openings,
// commits and closings of three epochs, or fills its disk there. It tests every ninth operation, and with
// STREAMDP_SLOW=1 all.
func TestUsersDiskCrashes(t *testing.T) {
	t.Parallel()
	for _, cap := range []int{0, 1} {
		t.Run(fmt.Sprint("cap ", cap), func(t *testing.T) {
			t.Parallel()
			begin := newUsersScenario(cap)
			refs := []fixtures.EpochReference{streamtest.ReferenceOf(t, 0, begin)}
			streamtest.CrashUsers(t, 9, begin, func(t testing.TB, s *streamtest.Scenario) { verifyUsers(s, t, refs) })
		})
	}
}
