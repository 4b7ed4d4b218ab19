package config

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// canonicalOrders is the canonical form of orders, written by hand from the example and the defaults in the reference.
const canonicalOrders = `{"centre":[40,3,1.2],"horizon":0,` +
	`"input":{"allow_compacted":false,"codec":"json","columns":["amount","items","weight"],"partition":0,"start":"earliest","topic":"orders"},` +
	`"lattice_bits":24,` +
	`"moments":{"buffers":0,"clip":1,"covariance":true,"decay":0,"factorization":"auto","inflation":0,"method":"auto","nu":0,"tune":0,"weights":[],"window":0,"workload":"mean"},` +
	`"on_horizon":"end","privacy":{"adjacency":"zero-out","delta":1e-8,"epsilon":1},"scale":[80,5,2],"step":100}`

// TestCanonical pins a canonical text and its digest. They must never change: an upgrade that changed them would end
// every open epoch.
func TestCanonical(t *testing.T) {
	s := parse(t, orders).Streams[0]
	if got := string(s.Canonical(0)); got != canonicalOrders {
		t.Errorf("got\n%s\nwant\n%s", got, canonicalOrders)
	}
	versions := map[string]string{"noise": "1", "mechanism": "moments/1"}
	got := s.Digest(0, versions)
	whole := sha256.Sum256(
		[]byte(`{"stream":` + canonicalOrders + `,"versions":{"mechanism":"moments/1","noise":"1"}}`))
	if got != whole || got != DigestOf(s.Canonical(0), versions) {
		t.Error("the digest is not the hash of the text")
	}
	if hex.EncodeToString(got[:]) != "94d194e74b2a6f7558fb913334a902b7cb5b3d3296afe5ec4b03191b63053267" {
		t.Errorf("digest %x", got)
	}
	if got == s.Digest(1, versions) || got == s.Digest(0, map[string]string{"noise": "2", "mechanism": "moments/1"}) ||
		got == s.Digest(0, nil) {
		t.Error("partition or versions are not in the digest")
	}
	if s.Digest(0, nil) != s.Digest(0, map[string]string{}) {
		t.Error("nil and empty versions differ")
	}
}

// TestDigestCovers lists changes of the configuration, and says which of them end an epoch and which do not.
func TestDigestCovers(t *testing.T) {
	base := parse(t, orders).Streams[0].Canonical(0)
	f := func(old, new string, want ...string) {
		t.Helper()
		src := strings.Replace(orders, old, new, 1)
		if src == orders {
			t.Fatalf("%q is not there", old)
		}
		if got := Diff(base, parse(t, src).Stream("orders").Canonical(0)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", new, got, want)
		}
	}
	end := "workload = \"mean\"\n"
	// These changes do not concern the guarantee, or mean the same as the former text.
	f("localhost:9092", "kafka.example:9093")
	f("/var/lib", "/srv")
	f("/etc/streamdp", "/run/secrets")
	f("operator", "public")
	f("orders.dp\"", "releases\", partition = 3, create = false, values = [\"mean\"], encoding = \"base64\"")
	f("limit_epsilon = 3.0", "limit_epsilon = 5\nlimit_delta = 1e-7")
	f("step ", "on_gap = \"null\"\nstep ")
	f("partition = 0", "partition = [0, 1]")
	f("partition = 0", `partition = "all"`)
	f("partition = 0, start = \"earliest\", codec = \"json\"", "partition = 0")
	f("[80.0, 5.0, 2.0]", "[80, 5, 2]")
	f(end, end+"method = \"auto\"\nfactorization = \"auto\"\ncovariance = true\nweights = []\nbands = 16\n")
	f(end, other)
	f(`"amount", "items", "weight"`, `"\u0061mount", 'items', """weight"""`)
	// These changes concern the guarantee.
	f(`topic = "orders"`, `topic = "orders2"`, `input.topic: "orders" → "orders2"`)
	f(`"earliest"`, `100`, `input.start: "earliest" → "100"`)
	f(`"items"`, `"pieces"`, `input.columns: ["amount","items","weight"] → ["amount","pieces","weight"]`)
	f(`codec = "json"`, `codec = "float64", allow_compacted = true`, `input.allow_compacted: false → true`,
		`input.codec: "json" → "float64"`)
	f(`codec = "json"`, `codec = "json", max_record_bytes = 5000`, `input.max_record_bytes: absent → 5000`)
	f("[40.0, 3.0, 1.2]", "0.5", "centre: [40,3,1.2] → [0.5,0.5,0.5]")
	f("scale  = [80.0, 5.0, 2.0]", "", "scale: [80,5,2] → [1,1,1]")
	f("step   = 100", "step = 101\nhorizon = 7\nlattice_bits = 25", "horizon: 0 → 7", "lattice_bits: 24 → 25",
		"step: 100 → 101")
	f("step   = 100", "step = 100\nhorizon = 7\non_horizon = \"rollover\"", "horizon: 0 → 7")
	f("step   = 100", "step = 100\nhorizon = 7\non_horizon = \"continue\"", "horizon: 0 → 7",
		`on_horizon: "end" → "continue"`)
	f("epsilon = 1.0\ndelta = 1e-8\nadjacency = \"zero-out\"", "epsilon = 1.5\ndelta = 2e-8\nadjacency = \"replace\"",
		`privacy.adjacency: "zero-out" → "replace"`, "privacy.delta: 1e-8 → 2e-8", "privacy.epsilon: 1 → 1.5")
	f(end,
		"method = \"jme\"\nworkload = \"exponential\"\ndecay = 0.9\nfactorization = \"blt\"\nbuffers = 3\ntune = 50\n"+
			"weights = [1, 0.5]\ncovariance = false\n",
		"moments.buffers: 0 → 3", "moments.covariance: true → false", "moments.decay: 0 → 0.9",
		`moments.factorization: "auto" → "blt"`, `moments.method: "auto" → "jme"`,
		"moments.tune: 0 → 50", "moments.weights: [] → [1,0.5]", `moments.workload: "mean" → "exponential"`)
	f(end, "workload = \"window\"\nwindow = 9\nnu = 0.25\n", "moments.nu: 0 → 0.25", "moments.window: 0 → 9",
		`moments.workload: "mean" → "window"`)
	f(end, end+"inflation = 1.5\n", "moments.inflation: 0 → 1.5")
	f("clip = 1.0", "clip = 1.0000000000000002", "moments.clip: 1 → 1.0000000000000002")
	f("[40.0, 3.0, 1.2]", "[40.0, -0.0, 1.2]", "centre: [40,3,1.2] → [40,0,1.2]")
}
func TestDiff(t *testing.T) {
	f := func(old, new string, want ...string) {
		t.Helper()
		if got := Diff([]byte(old), []byte(new)); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f(`{}`, `{}`)
	f(`{"a":1}`, `{"a":1}`)
	f(`{"a":1,"b":{"c":[1,2],"d":"x"}}`, `{"b":{"c":[1,3],"d":"x"},"e":true}`, "a: 1 → absent", "b.c: [1,2] → [1,3]",
		"e: absent → true")
	f(`{"a":9007199254740993}`, `{"a":9007199254740992}`, "a: 9007199254740993 → 9007199254740992")
	f(`{"a":{"b":1}}`, `{"a":2}`, "a: absent → 2", "a.b: 1 → absent")
	f(`{"a":"<&>"}`, `{"a":"é"}`, `a: "<&>" → "é"`)
	f(`{`, `{}`, "the old configuration is not JSON")
	f(`{}`, `{}}`, "the new configuration is not JSON")
}
