package stream_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/state"
)

// TestKillsOfUsers kills daemons that protect persons at random moments. A snapshot of the map is written after every
// second step, and files change after each step. One case has a cap and a full table, the other only a separation. No
// key has two releases, none is missing, and all equal those of an uninterrupted run, which never reads the map from
// disk.
func TestKillsOfUsers(t *testing.T) {
	t.Parallel()
	n := kills(t)
	for mode, m := range fixtures.PersonModes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			for round, left := uint64(0), (n+1)/2; left > 0 && !t.Failed(); round++ {
				killUsers(t, mode, round, min(left, 500)) // a horizon has room for this many
				left -= 500
			}
		})
	}
}

func killUsers(t *testing.T, mode int, round uint64, kills int) {
	rng := rand.New(rand.NewPCG(40+uint64(mode), round))
	r := streamtest.PersonRig(t, mode, 20)
	defer r.Broker.Close()
	spec := specOf(r, "daemon", 16<<10)
	f := feedAt(r, 20*time.Millisecond, 25)
	behind := 0
	for range kills {
		killLoop(t, r, spec, rng, 1, nil)
		if usersBehind(r) {
			behind++
		}
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	if usersBehind(r) {
		t.Error("files of persons hold more than the last commit, although there was no kill")
	}
	r.History("orders.dp").Equals(t, r.Uninterrupted(steps))
	t.Logf("%d kills, %d steps; after %d kills the files of persons held more than the last commit", kills,
		steps, behind)
	if kills >= 100 && behind == 0 {
		t.Error("no kill hit a commit between its two writes")
	}
}

// usersBehind reports whether the files of persons are ahead of the last commit.
func usersBehind(r *streamtest.Rig) bool {
	r.T.Helper()
	data, err := os.ReadFile(r.File(state.CheckpointName))
	fixtures.Must(r.T, err)
	cp, err := state.ParseCheckpoint(data)
	fixtures.Must(r.T, err)
	var at persons.Position
	fixtures.Must(r.T, at.UnmarshalBinary(cp.Users[0]))
	length, last := map[uint64]uint64{}, uint64(0)
	for _, s := range at.Segments {
		length[s.Number], last = s.Length, s.Number
	}
	for _, name := range r.HasUsers() {
		info, err := os.Stat(name)
		fixtures.Must(r.T, err)
		var n uint64
		_, err = fmt.Sscanf(filepath.Ext(name), ".%d", &n)
		fixtures.Must(r.T, err)
		if n > last || length[n] > 0 && uint64(info.Size()) > length[n] {
			return true
		}
	}
	return false
}

// TestUsersKillCopies kills two daemons on copies of one state directory that publish into one output.
func TestUsersKillCopies(t *testing.T) {
	t.Parallel()
	fixtures.Slow(t)
	for mode, m := range fixtures.PersonModes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			if _, duplicates := killTwo(t, streamtest.PersonRig(t, mode, 20), 42+uint64(mode),
				killsOf(8, 15)); duplicates == 0 {
				t.Error("the copies did not run at the same time")
			}
		})
	}
}
