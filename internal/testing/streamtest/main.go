package streamtest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/stream/state"
)

// Main is TestMain of each package whose tests use the rig. In a child process it runs Child instead of tests.
func Main(m *testing.M) {
	persons.SnapshotLeast = 600 // this takes 30 records instead of three million
	state.PersonsBytes = 400
	if text := os.Getenv(ChildVariable); text != "" {
		if err := Child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Tests spend most of their time waiting for brokers, disks and clocks, so more of them run in parallel. The flag
	// -parallel overrides this.
	parallel := 4 * runtime.GOMAXPROCS(0)
	if race.Enabled { // with the race detector tests spend more time computing
		parallel /= 2
	}
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
