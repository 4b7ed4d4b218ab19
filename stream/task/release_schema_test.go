package task

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
)

// TestReleaseSchema: releases of all forms conform to the schema, and other documents do not.
func TestReleaseSchema(t *testing.T) {
	t.Parallel()
	log := mutateLog(1)[:100]
	for _, toml := range append([]string{
		fixtures.MachineStream,
		fixtures.With(fixtures.MachineStream, `topic = "out"`, `topic = "out", encoding = "base64"`),
		fixtures.With(fixtures.MachineStream, `topic = "out"`, `topic = "out", privacy_every = 3`),
		fixtures.With(fixtures.MachineStream, `topic = "out"`, `topic = "out", values = ["mean", "covariance"]`),
		fixtures.With(fixtures.MachineStream, `codec = "json"`, `codec = "json", allow_compacted = true`),
		fixtures.MachineStream + "workload = \"exponential\"\ndecay = 0.9\n",
		fixtures.MachineStream + "workload = \"window\"\nwindow = 5\n",
		fixtures.MachineStream + "workload = \"sum\"\nfactorization = \"identity\"\n",
		fixtures.MachineStream + "workload = \"sum\"\nfactorization = \"bisr\"\nbands = 4\n",
		fixtures.With(fixtures.MachineStream, "step   = 7", "step = 7\nhorizon = 5", `adjacency = "replace"`,
			`adjacency = "zero-out"`),
	}, slices.Concat(fixtures.MachineRefits, fixtures.MachineRegressions, fixtures.MachineCombined)...) {
		m := newMachine(t, toml, 1)
		m.m.Insecure = strings.Contains(toml, "window")
		m.restart()
		if m.all(log, 100); strings.Contains(toml, "[stream.m.sgd]\ntarget") { // the first steps search
			m.all(mutateLog(1), 600)
		}
		if len(m.releases) == 0 {
			t.Fatal("no release")
		}
		for _, p := range m.releases {
			fixtures.Conforms(t, string(p.Value))
		}
	}
	good := string(newMachine(t, fixtures.MachineStream, 1).all(log, 100).releases[3].Value)
	for _, change := range [][2]string{
		{`"schema":"streamdp.release.v1"`, `"schema":"streamdp.release.v2"`},
		{`"epoch":1`, `"epoch":0`},
		{`"step":3`, `"step":"3"`},
		{`"rows":7`, `"rows":-1`},
		{`"offsets":[14,21]`, `"offsets":[14]`},
		{`"offsets":[14,21]`, `"offsets":[14,21,28]`},
		{`"covers":[0,21]`, `"covers":[0.5,21]`},
		{`"columns":["a","b","c"]`, `"columns":["a","b","a"]`},
		{`"scale":[0.5,4,1.5]`, `"scale":[0.5,0,1.5]`},
		{`"adjacency":"replace"`, `"adjacency":"add-remove"`},
		{`"delta":1e-8`, `"delta":1`},
		{`"shape":[3]`, `"shape":[]`},
		{`"layout":"upper"`, `"layout":"lower"`},
		{`"se":[`, `"se":["1",`},
		{`"finite_precision":"exact",`, ``},
		{`"version":"test"`, `"version":null`},
		{`"stream":"m"`, `"stream":"M"`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("the release has no %s:\n%s", change[0], good)
		}
		if faults, err := fixtures.Validate(fixtures.ReleaseSchema(t), bad); err != nil || len(faults) == 0 {
			t.Errorf("the schema accepts %s: %v", change[1], err)
		}
	}
}

// TestGoldenSchema: the golden releases of package core conform to the schema.
func TestGoldenSchema(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(fixtures.Root(), "stream", "core", "testdata", "release*.json"))
	fixtures.Must(t, err)
	if len(files) < 4 {
		t.Fatalf("%d files", len(files))
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		fixtures.Must(t, err)
		fixtures.Conforms(t, string(data[bytes.IndexByte(data, '{'):])) // after key and headers
	}
}
