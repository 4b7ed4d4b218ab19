package stream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// newUsersScenario is newScenario where persons are protected: with a cap and a full table, or with a
// separation alone.
func newUsersScenario(cap int) func(testing.TB) *scenario {
	user := "max_users = 20" // two steps
	if cap > 0 {
		user = fmt.Sprintf("cap = %d, max_users = 5", cap)
	}
	return func(t testing.TB) *scenario {
		return newScenarioOf(t, func(r *rig) {
			r.toml = with(r.toml, `"zero-out"`, `"replace"`, "step = 10\n", "step = 10\nuser = { key = \"field:user\", separation = 2, "+user+" }\n")
			r.record = personRecord
		})
	}
}

// verifyUsers fails unless the output is that of an uninterrupted run, and no file of persons outlives its
// epoch.
func verifyUsers(s *scenario, t testing.TB, refs []epochReference) {
	t.Helper()
	s.same(t, refs)
	open := uint64(0)
	data, err := s.r.disk.ReadFile(s.r.ledgerFile())
	must(t, err)
	l, err := parseLedger(data, nil)
	must(t, err)
	if newest := l.newest(ordersTask); newest.Kind == kindOpen {
		open = newest.Epoch
	}
	files := s.r.disk.(*simDisk).holds(usersPrefix)
	if len(files) == 0 || slices.ContainsFunc(files, func(name string) bool { return !strings.HasPrefix(name, usersOf(open)) }) {
		t.Errorf("epoch %d is open, and there are %v", open, files)
	}
}

// TestUsersDiskCrashes stops the machine before operations on files of persons and checkpoints, in the openings,
// commits and closings of three epochs, and fills its disk there. It takes every
// ninth of them, and with STREAMDP_SLOW=1 all.
func TestUsersDiskCrashes(t *testing.T) {
	t.Parallel()
	for _, cap := range []int{0, 1} {
		t.Run(fmt.Sprint("cap ", cap), func(t *testing.T) {
			t.Parallel()
			begin := newUsersScenario(cap)
			refs := []epochReference{referenceOf(t, 0, begin)}
			crashUsers(t, 9, begin, func(t testing.TB, s *scenario) { verifyUsers(s, t, refs) })
		})
	}
}
