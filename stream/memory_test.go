package stream_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

// TestMemory measures the daemon's resident memory with 100 packed columns and the broker in another process. The
// garbage collector has a limit of 64 MiB and starts early; otherwise the peak would depend on when it gets the
// processor. On a busy machine it may start late, so the test allows twice that limit, not counting the program's own
// pages. A daemon that held the whole log, as records and as rows, would exceed it. The daemon holds three responses of
// 4 MiB, four chunks of 1 MiB with their rows, and, at 200 kB per release, 4 MiB of releases for each of two commits.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes several times the memory")
	}
	t.Parallel()
	const columns, records, step = 100, 60_000, 1000
	b := streamtest.Spawn(t, streamtest.ChildSpec{Role: "broker", Topics: []string{"in"}}).Up()
	toml := fixtures.With(fixtures.WideStream(columns, step), `"in"`, `"in"`)
	r := streamtest.NewRigAt(t, nil, b.Addr, toml)
	var list []kafka.Message
	for _, rec := range fixtures.PackedRecords(columns, 5000) {
		list = append(list, kafka.Message{Value: rec.Value, Time: time.UnixMilli(1)})
	}
	for range records / len(list) {
		if _, err := r.Client.Produce(t.Context(), "in", 0, list); err != nil {
			t.Fatal(err)
		}
	}
	r.Commit = "200ms"
	p := streamtest.Spawn(t,
		streamtest.ChildSpec{Role: "daemon", Config: string(r.Text()), Seed: r.Seed, Memory: 64 << 20}).Up()
	x := &remote{t, p}
	x.until(`streamdp_step{partition="0",stream="m"} 60`)
	x.until(`streamdp_outbox_releases{partition="0",stream="m"} 0`)
	peak := resident(t, p.Cmd.Process.Pid, "VmHWM") - resident(t, p.Cmd.Process.Pid, "RssFile")
	if code := p.Terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Stderr)
	}
	t.Logf(
		"%d records of %d columns, %d MB: the daemon's resident memory was at most %.1f MB without the program's pages",
		records, columns, records*columns*8>>20, peak)
	if peak > 2*64 {
		t.Errorf("%.1f MB of resident memory", peak)
	}
}

// remote is a daemon in another process.
type remote struct {
	t testing.TB
	p *streamtest.Process
}

// until waits for a line of its metrics.
func (x *remote) until(line string) {
	x.t.Helper()
	deadline := time.Now().Add(fixtures.Patience)
	for {
		_, page := fixtures.Fetch(x.t, "http://"+x.p.Addr+"/metrics")
		if strings.Contains(page, "\n"+line+"\n") {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("not reached: %s\n%s\n%s", line, page, x.p.Stderr)
		}
		time.Sleep(20 * time.Millisecond) // poll, because the other process sends no notification
	}
}

// resident returns a part of the resident memory of a process, in MB: VmHWM is the largest so far, RssFile the present
// part of files, which is the program.
func resident(t testing.TB, pid int, part string) float64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc here to measure memory with")
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) == 3 && fields[0] == part+":" {
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	t.Fatalf("no %s", part)
	return 0
}
