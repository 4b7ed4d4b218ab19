package core

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

func goldenManifest(t testing.TB) *Manifest {
	t.Helper()
	versions := map[string]string{"noise": "row/v1", "mechanism": "jme/v1"}
	canonical := []byte(`{"privacy":{"epsilon":1},"step":100,"text":"<&>"}`)
	digest := config.DigestOf(canonical, versions)
	return &Manifest{
		Format: ManifestFormat, Stream: "orders", Epoch: 3, Source: Source{"cluster", "orders", 0},
		Nonce: []byte("0123456789abcdef"), KeyID: "0011223344556677", EpochID: []byte("abcdefgh"),
		Config: canonical, Versions: versions, Digest: digest[:],
		Incarnation: 2, Base: 1000, Partitions: 4, Mechanism: "moments",
		Plan: json.RawMessage("{\n    \"clip\": 1\n  }"),
		Cost: dp.Cost{Adjacency: dp.Replace, Mu: 0.25}, LimitEpsilon: 3, LimitDelta: 1e-8, ChargedEpsilonAtOpen: 1.25,
		Persons: []Person{{2, new(2.708)}, {10, nil}}, Version: "v1.2.3",
	}
}

func TestGoldenManifest(t *testing.T) {
	t.Parallel()
	want := goldenManifest(t)
	file, err := want.Encode()
	must(t, err)
	golden(t, "manifest.json", file)
	got, err := ParseManifest(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
	}
	for _, change := range [][2]string{
		{`"step": 100`, `"step": 101`}, // the digest
		{`row/v1`, `row/v2`},
		{`"format": 1`, `"format": 2`},
		{`"epoch": 3`, `"epoch": 0`},
		{`"base": 1000`, `"base": -1`},
		{`"nonce": "30`, `"nonce": "`},
		{`"version": "v1.2.3"`, `"version": "v1.2.3", "more": 1`},
	} {
		bad := strings.Replace(string(file), change[0], change[1], 1)
		if bad == string(file) {
			t.Fatalf("no %s in the manifest", change[0])
		}
		if _, err := ParseManifest([]byte(bad)); err == nil {
			t.Errorf("a manifest with %s is accepted", change[1])
		}
	}
	if _, err := ParseManifest(append(file, '{')); err == nil {
		t.Error("a manifest followed by text is accepted")
	}
}

func FuzzManifest(f *testing.F) {
	file, err := goldenManifest(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(`{"format":1,"epoch":1,"nonce":"00","config":{},"versions":null}`))
	// A manifest without the cost of a record.
	f.Add(regexp.MustCompile(`(?s)"cost": \{.*?\},`).ReplaceAll(file, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		try := func(data []byte) {
			m, err := ParseManifest(data)
			if err != nil {
				return
			}
			file, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseManifest(file)
			if err != nil {
				t.Fatalf("%v\n%s", err, file)
			}
			file2, err := again.Encode()
			if err != nil || !bytes.Equal(file, file2) {
				t.Fatalf("%v\n%s\n%s", err, file, file2)
			}
		}
		try(data)
		// The same manifest with the right digest.
		var m map[string]json.RawMessage
		if json.Unmarshal(data, &m) != nil {
			return
		}
		var versions map[string]string
		var compact bytes.Buffer
		if json.Unmarshal(m["versions"], &versions) != nil || json.Compact(&compact, m["config"]) != nil {
			return
		}
		digest := config.DigestOf(compact.Bytes(), versions)
		m["digest"], _ = json.Marshal(hex.EncodeToString(digest[:]))
		if fixed, err := json.Marshal(m); err == nil {
			try(fixed)
		}
	})
}
