package demo

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestDemoInstances: three processes share a topic, one is killed, and together they publish what a single process
// publishes.
func TestDemoInstances(t *testing.T) {
	o := options(5)
	o.Instances, o.JSON = 3, true
	out, errs := run(t, o)
	var r instancesResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Releases != instancesRecords/100 || r.Records != instancesRecords || r.Conflicts+r.Different+r.Missing != 0 ||
		!r.Insecure || r.Killed == "" || len(r.Partial) == 0 {
		t.Errorf("%+v", r)
	}
	if !(r.Takeover >= instancesSession.Seconds()/2) {
		t.Errorf("taken over %g s after a kill, before the session timeout: the instance was not dead", r.Takeover)
	}
	for _, text := range []string{"instance 1 has partitions ", "instance 3 has partitions ", "; its page is at " +
		"http://127.0.0.1:", "killed " + r.Killed + ", which had partitions ", " s other instances publish"} {
		if !strings.Contains(errs, text) {
			t.Errorf("missing %q in\n%s", text, errs)
		}
	}
	_, after, _ := strings.Cut(errs, " s other instances publish")
	if strings.Contains(after, r.Killed) {
		t.Errorf("%s still has partitions:\n%s", r.Killed, errs)
	}
	t.Logf("%+v\n%s", r, errs)
}
