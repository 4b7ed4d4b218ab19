package stream

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/race"
)

func TestMain(m *testing.M) {
	persons.SnapshotLeast = 600 // of 30 records, instead of three million
	usersBytes = 400
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Tests wait for brokers, disks and clocks most of their time. -parallel overrides this.
	parallel := 4 * runtime.GOMAXPROCS(0)
	if race.Enabled { // which leaves them less to wait for
		parallel /= 2
	}
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
