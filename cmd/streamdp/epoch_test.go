package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestEpochs follows an operator through every refusal and its remedy: a changed configuration, a spent budget, a
// closed epoch.
func TestEpochs(t *testing.T) {
	s := newSite(t)
	// An empty ledger is reported with its directory, because the directory may be wrong.
	want(t, exitDone, "state has no epochs", "epoch", "list", "-c", s.config)
	want(t, exitDone, "state charges nothing\n", "ledger", "-c", s.config)
	want(t, exitDone, "charges nothing for stream orders", "ledger", "-c", s.config, "--stream", "orders")
	want(t, exitUsage, "neither the configuration nor the ledger has a stream nope", "ledger", "-c", s.config,
		"--stream", "nope")

	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))
	// An epoch that cannot be opened is refused before the open epoch is closed to make room for it, with and without a
	// running daemon.
	refused := func(closed, code int, text string, args ...string) {
		t.Helper()
		want(t, code, text, append([]string{"epoch", "open", "orders", "-c", s.config, "--yes"}, args...)...)
		if out := want(t, exitDone, "", "epoch", "list", "-c", s.config); strings.Count(out, "closed") != closed {
			t.Errorf("epochs after a refusal:\n%s", out)
		}
	}
	impossible := func() {
		t.Helper()
		refused(0, exitNothing, "budget of orders/0 spent", "--from", "earliest")
		refused(0, exitFailure, "start offset 9999 is not in the log of orders/0, which has offsets 0 to 25",
			"--from", "9999")
	}
	impossible()
	d.stop(syscall.SIGTERM)
	impossible()
	refused(0, exitUsage, "--from is \"sometime\", must be continue, earliest, latest or an offset",
		"--from", "sometime")
	refused(0, exitUsage, "stream orders does not read partition 3", "--partition", "3")

	d = s.start()
	d.until("running", func(s monitor.TaskStatus) bool { return s.State == "running" })
	// While the daemon runs, commands go through its socket.
	said := func(text string, args ...string) {
		t.Helper()
		if out := want(t, exitDone, "",
			append([]string{"epoch"}, append(args, "orders", "-c", s.config, "--yes")...)...); !strings.Contains(out,
			text) {
			t.Errorf("epoch %v says %q, not %q", args, out, text)
		}
	}
	said(
		"epoch 1 of orders-0 is closed and charged for offsets [0, 20) of orders/0\n"+
			"records have paid at most 1 so far; the limit is 1\n", "close")
	<-d.read // the daemon has nothing left to run and ends
	d.cmd.Wait()
	if code := d.cmd.ProcessState.ExitCode(); code != exitDone {
		t.Errorf("after closing: exit code %d\n%s", code, d.log)
	}
	want(t, exitNothing,
		"nothing to run: every epoch is closed or at its horizon; open another: streamdp epoch open STREAM\n", "run",
		"-c", s.config)

	// A new epoch begins where the old one ended, so no record pays twice.
	said("epoch 2 of orders-0 is open from offset 20 of orders/0\n", "open")
	d = s.start()
	if st := d.until("running", func(s monitor.TaskStatus) bool { return s.State == "running" }); st.Epoch != 2 ||
		st.Base != 20 || st.ChargedEpsilon > 1.0000001 {
		t.Errorf("second epoch: %+v", st)
	}
	// An epoch from the beginning would exceed the limit.
	refused(1, exitNothing, "budget of orders/0 spent", "--from", "earliest")
	d.stop(syscall.SIGTERM)
	refused(1, exitNothing, "budget of orders/0 spent", "--from", "earliest")
	s.write("", "2.5")
	said(`"epoch":3,"state":"open"`, "open", "--from", "earliest", "--json")

	// A changed guarantee is refused, with the difference.
	s.write("lattice_bits = 26", "2.5")
	want(t, exitState, "lattice_bits: 24 → 26", "run", "-c", s.config)
	want(t, exitDone, "", "epoch", "open", "orders", "-c", s.config, "--yes")
	out := want(t, exitDone, "", "epoch", "list", "-c", s.config)
	if strings.Count(out, "closed") != 3 && strings.Count(out, " open ") != 1 {
		t.Errorf("epochs:\n%s", out)
	}
	var epochs []ledger.EpochInfo
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "epoch", "list", "--json", "-c", s.config)),
		&epochs); err != nil || len(epochs) < 4 {
		t.Errorf("epoch list --json: %+v, %v", epochs, err)
	}
	text := want(t, exitDone, "", "ledger", "-c", s.config, "--records", "3")
	for _, w := range []string{"orders/0 of cluster", "PERSON WITH 3", "[0, 20)", "orders-0 epoch 1 (1)", ", " +
		"open)", "the limit is 2.5"} {
		if !strings.Contains(text, w) {
			t.Errorf("ledger does not say %q:\n%s", w, text)
		}
	}
	var spent []ledger.Spent
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "ledger", "--json", "-c", s.config, "--stream", "orders")),
		&spent); err != nil || len(spent) != 1 || len(spent[0].Ranges) < 2 {
		t.Errorf("ledger --json: %+v, %v", spent, err)
	}
	want(t, exitUsage, "must be at least 1", "ledger", "-c", s.config, "--records", "0")
	want(t, exitDone, "", "epoch", "close", "orders", "-c", s.config, "--yes")
	want(t, exitFailure, "no open epoch", "epoch", "close", "orders", "-c", s.config, "--yes")

	// Without --yes the command asks and says where the epoch begins. No answer means no.
	want(t, exitFailure, "not confirmed", "epoch", "open", "orders", "-c", s.config)
	want(t, exitFailure, "It begins at offset 0, where epoch 4 ended, or", "epoch", "open", "orders", "-c", s.config)
	want(t, exitFailure, "It begins at offset 7.\n", "epoch", "open", "orders", "-c", s.config, "--from", "7")
	want(t, exitFailure, "It begins at the log's first offset", "epoch", "open", "orders", "-c", s.config,
		"--from", "earliest")
}
