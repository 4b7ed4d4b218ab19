package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/streamdp/streamdp/internal/schema"
)

// avro returns an Avro schema of a record with the given number of columns a, b, ….
func avro(columns int) sr.Schema {
	var fields []string
	for i := range columns {
		fields = append(fields, fmt.Sprintf(`{"name":"%c","type":"double"}`, 'a'+i))
	}
	return sr.Schema{Schema: `{"type":"record","name":"r","fields":[` + strings.Join(fields, ",") + `]}`}
}

// served is a registry that counts its requests.
type served struct {
	*srfake.Registry
	requests atomic.Int64

	mu    sync.Mutex
	paths []string
	// fail returns true if it has answered the request with a failure; nil: no request fails.
	fail func(w http.ResponseWriter, r *http.Request) bool
}

func serve(t *testing.T, o ...srfake.Option) *served {
	s := &served{Registry: srfake.New(o...)}
	t.Cleanup(s.Close)
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		s.requests.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.paths = append(s.paths, r.URL.Path)
		return s.fail != nil && s.fail(w, r)
	})
	return s
}

func (s *served) failing(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// client returns a client of servers with short timeouts.
func client(t *testing.T, o Options, urls ...string) *Client {
	t.Helper()
	o.URLs, o.Timeout = urls, 2*time.Second
	o.again, o.pause = time.Millisecond, time.Millisecond
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func look(t *testing.T, s *Subjects) {
	t.Helper()
	if err := s.Look(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

// ids returns the known ones among the lowest ids.
func ids(s *Subjects) (known []int32) {
	for id := range int32(20) {
		if _, ok := s.Known(id); ok {
			known = append(known, id)
		}
	}
	return known
}

// TestSubjects: after a look all versions of the subjects are known, and none of other subjects. A version that is
// registered later is found when a record needs it.
func TestSubjects(t *testing.T) {
	r := serve(t)
	r.SeedSchema("orders-value", 1, 3, avro(1))
	r.SeedSchema("orders-value", 2, 5, avro(2))
	r.SeedSchema("other", 1, 7, avro(3))
	r.SeedSchema("second", 1, 9, avro(4))
	c := client(t, Options{}, r.URL())
	s := c.Subjects([]string{"orders-value", "second"})
	if c.Subjects([]string{"orders-value", "second"}) != s || c.Subjects([]string{"second"}) == s {
		t.Error("the same names give other subjects")
	}
	if ids(s) != nil {
		t.Error("an id is known before a look")
	}
	look(t, s)
	if got := ids(s); !slices.Equal(got, []int32{3, 5, 9}) {
		t.Errorf("known are %v", got)
	}
	if x, _ := s.Known(5); x.Format() != "avro" {
		t.Error("id 5 has another schema")
	}
	before := r.requests.Load()
	s.Resolve([]int32{3, 5, 9})
	if r.requests.Load() != before {
		t.Error("known ids caused a request")
	}
	r.SeedSchema("second", 2, 11, avro(5))
	if found := s.Resolve([]int32{5, 11, 13}); found[5] == nil || found[11] == nil || len(found) != 2 {
		t.Errorf("found are %v", found)
	}
	if len(s.Versions()) != 3 {
		t.Error("a version that a record needed is shown before the next look")
	}
	look(t, s)
	if got := ids(s); !slices.Equal(got, []int32{3, 5, 9, 11}) {
		t.Errorf("known are %v", got)
	}
	var latest []string
	for _, v := range s.Versions() {
		if v.Latest {
			latest = append(latest, fmt.Sprint(v.Subject, " ", v.Number, " ", v.ID, " ", v.Err))
		}
	}
	if !slices.Equal(latest, []string{"orders-value 2 5 <nil>", "second 2 11 <nil>"}) {
		t.Errorf("the newest versions are %q", latest)
	}
}

// TestFlood: any number of unknown ids in a batch causes the same number of requests, without any id in them, and a new
// id among them is found. Unknown ids are not remembered: an id that is registered later is found.
func TestFlood(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	asked := func(ids []int32) int64 {
		before := r.requests.Load()
		s.Resolve(ids)
		return r.requests.Load() - before
	}
	one := asked([]int32{1000})
	junk := make([]int32, 50_000)
	for i := range junk {
		junk[i] = int32(i + 100)
	}
	if many := asked(junk); many != one || one > 4 {
		t.Errorf("%d requests for one unknown id, %d for many", one, many)
	}
	r.SeedSchema("t-value", 2, 60_000, avro(2))
	if s.Resolve(append(junk, 60_000))[60_000] == nil {
		t.Error("a new id was not found among unknown ones")
	}
	r.SeedSchema("t-value", 3, 1000, avro(3))
	if s.Resolve([]int32{1000})[1000] == nil {
		t.Error("an unknown id stays unknown after it is registered")
	}
	for _, p := range r.paths {
		if strings.Contains(p, "ids") {
			t.Errorf("the registry was asked for an id: %s", p)
		}
	}
}

// TestShared: decoders that meet unknown ids at the same time share their requests.
func TestShared(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	before := r.requests.Load()
	r.failing(func(http.ResponseWriter, *http.Request) bool { time.Sleep(5 * time.Millisecond); return false })
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() { s.Resolve([]int32{99}) })
	}
	wg.Wait()
	if n := r.requests.Load() - before; n > 24 {
		t.Errorf("%d requests for 32 decoders", n)
	}
}

// TestOutage: a decoder waits for the registry, but only for the allowed time, and not again once looks have failed for
// that time. Known ids stay known.
func TestOutage(t *testing.T) {
	t.Parallel()
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	const patience = time.Second
	s := client(t, Options{patience: patience}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	for name, fail := range map[string]func(w http.ResponseWriter, _ *http.Request) bool{
		"503":     func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(503); return true },
		"401":     func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(401); return true },
		"a proxy": func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(404); return true },
		"no JSON": func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, "<html>"); return true },
		"closed":  func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		r.failing(fail)
		begun := time.Now()
		s.Resolve([]int32{2})
		if d := time.Since(begun); d < patience || d > 9*patience {
			t.Errorf("%s: waited %v", name, d)
		}
		if got := ids(s); !slices.Equal(got, []int32{1}) {
			t.Errorf("%s: known are %v", name, got)
		}
	}
	// First case: the registry comes back while a decoder waits.
	const id = 4
	r.failing(nil)
	r.SeedSchema("t-value", 2, id, avro(2))
	n := 0
	r.failing(func(w http.ResponseWriter, _ *http.Request) bool {
		if n++; n < 4 {
			w.WriteHeader(500)
		}
		return n < 4
	})
	if client(t, Options{}, r.URL()).Subjects([]string{"t-value"}).Resolve([]int32{id})[id] == nil {
		t.Error("not found after a short outage")
	}
	// Second case: the outage is long.
	r.failing(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	if err := s.Look(t.Context(), 0); err == nil || !strings.Contains(err.Error(), r.URL()+" answers 500") {
		t.Errorf("a look at a server that is down: %v", err)
	}
	time.Sleep(patience)
	before := r.requests.Load()
	s.Resolve([]int32{2})
	if n := r.requests.Load() - before; n != 1 {
		t.Errorf("in a long outage a decoder sends %d requests", n)
	}
	r.failing(nil)
	look(t, s)
	if s.downFor() != 0 {
		t.Error("down after a successful look")
	}
}

// TestBehind: a new id is found even if the server that answers first does not know the id yet.
func TestBehind(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	r.SeedSchema("t-value", 2, 2, avro(2))
	lists := 0
	r.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/versions") {
			return false
		}
		if lists++; lists == 1 {
			fmt.Fprint(w, "[1]")
		}
		return lists == 1
	})
	if found := s.Resolve([]int32{2}); found[2] == nil || lists != 2 {
		t.Errorf("found is %v after %d lists", found, lists)
	}
	// An id in the first list of versions is found, even if another record of the batch causes a second request, and
	// the server that answers lacks the newest versions.
	r.SeedSchema("t-value", 3, 3, avro(2))
	lists = -1
	if found := s.Resolve([]int32{3, 99}); found[3] == nil || lists != 1 {
		t.Errorf("found is %v after %d lists", found, lists+1)
	}
}

// TestNothingKept: if the id of a record causes a request, the result is not used for a later record with the same id
// while the registry is down or has lost the version. Only looks make ids known, so a record's fate does not depend on
// earlier records.
func TestNothingKept(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(r *served){
		"away": func(r *served) {
			r.failing(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
		},
		"deleted": func(r *served) { r.Reset(); r.SeedSchema("t-value", 1, 1, avro(1)) },
		"without texts": func(r *served) {
			r.failing(func(w http.ResponseWriter, req *http.Request) bool {
				lacks := strings.HasSuffix(req.URL.Path, "/versions/2")
				if lacks {
					w.WriteHeader(500)
				}
				return lacks
			})
		},
	} {
		r := serve(t)
		r.SeedSchema("t-value", 1, 1, avro(1))
		s := client(t, Options{patience: 2 * time.Second}, r.URL()).Subjects([]string{"t-value"})
		look(t, s)
		r.SeedSchema("t-value", 2, 2, avro(2))
		if s.Resolve([]int32{2})[2] == nil {
			t.Fatal("not found")
		}
		if _, ok := s.Known(2); ok || s.Has(2) {
			t.Errorf("%s: an id that a record asked for is known", name)
		}
		gone(r)
		if found := s.Resolve([]int32{1, 2}); found[2] != nil || found[1] == nil {
			t.Errorf("%s: found are %v", name, found)
		}
		_ = s.Look(t.Context(), 0)
		if got := ids(s); !slices.Equal(got, []int32{1}) {
			t.Errorf("%s: known are %v after a look", name, got)
		}
	}
}

// TestLooksDoNotWait: a look does not wait for requests that the ids of records caused.
func TestLooksDoNotWait(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	asked, hang := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.Intercept(func(http.ResponseWriter, *http.Request) bool {
		first := false
		once.Do(func() { first = true })
		if first {
			close(asked)
			<-hang
		}
		return false
	})
	var wg sync.WaitGroup
	wg.Go(func() { s.Resolve([]int32{2}) })
	<-asked
	look(t, s)
	close(hang)
	wg.Wait()
}

// TestLook: a look reads again only if the last reading is older than it allows, and retries after a failure.
func TestLook(t *testing.T) {
	r := serve(t)
	c := client(t, Options{}, r.URL())
	s := c.Subjects([]string{"t-value"})
	if err := s.Look(t.Context(), 0); !errors.Is(err, ErrNotThere) ||
		!strings.Contains(err.Error(), "subject t-value: is not in the registry") {
		t.Errorf("a missing subject: %v", err)
	}
	r.SeedSchema("t-value", 1, 1, avro(1))
	if err := s.Look(t.Context(), time.Hour); err != nil {
		t.Errorf("a failure was remembered: %v", err)
	}
	before := r.requests.Load()
	if err := s.Look(t.Context(), time.Hour); err != nil || r.requests.Load() != before {
		t.Error("a fresh reading was repeated")
	}
	look(t, s)
	if r.requests.Load() == before {
		t.Error("nothing was read")
	}
	r.SeedSchema("t-value", 2, 2, avro(2))
	s.Resolve([]int32{2})
	if err := s.Look(t.Context(), time.Hour); err != nil || len(s.Versions()) != 1 {
		t.Error("the result of a look depends on requests that records caused")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Look(ctx, 0); !errors.Is(err, context.Canceled) || s.downFor() != 0 {
		t.Errorf("a cancelled look: %v", err)
	}
}

// TestDeleted: deleted versions stay known, also in a process that starts later, as long as the registry has them. A
// subject that was deleted permanently and registered again gives its new ids.
func TestDeleted(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	r.SeedSchema("t-value", 2, 2, avro(2))
	c := client(t, Options{}, r.URL())
	s := c.Subjects([]string{"t-value"})
	look(t, s)
	admin, err := sr.NewClient(sr.URLs(r.URL()))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.DeleteSchema(t.Context(), "t-value", 2, sr.SoftDelete); err != nil {
		t.Fatal(err)
	}
	later := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	for _, s := range []*Subjects{s, later} {
		look(t, s)
		if got := ids(s); !slices.Equal(got, []int32{1, 2}) {
			t.Errorf("known are %v", got)
		}
		for _, v := range s.Versions() {
			if v.Latest != (v.Number == 1) {
				t.Errorf("version %d: latest is %v", v.Number, v.Latest)
			}
		}
	}
	for _, how := range []sr.DeleteHow{sr.SoftDelete, sr.HardDelete} {
		if _, err := admin.DeleteSubject(t.Context(), "t-value", how); err != nil {
			t.Fatal(err)
		}
		look(t, s)
	}
	r.SeedSchema("t-value", 1, 8, avro(3))
	look(t, s)
	if got := ids(s); !slices.Equal(got, []int32{1, 2, 8}) {
		t.Errorf("known are %v", got)
	}
}

// TestUnusable: an unusable schema affects only its own id, and is reported.
func TestUnusable(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	r.SeedSchema("t-value", 2, 2, sr.Schema{Schema: `{"type":"record"}`})
	r.SeedSchema("t-value", 3, 3, sr.Schema{Schema: `"int"` + strings.Repeat(" ", MaxAnswer)})
	r.SeedSchema("t-value", 4, 4, avro(2))
	r.SeedSchema("t-value", 5, 1<<31, avro(3))
	r.SeedSchema("t-value", 6, 6,
		sr.Schema{Type: sr.TypeProtobuf, Schema: "EgFwIhcKAUESEgoBYRgBIAEoCzIELnAuQToBeGIGcHJvdG8y"})
	r.SeedSchema("t-value", 7, 7,
		sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "` + strings.Repeat("x", 5000) + `"; message M {}`})
	r.SeedSchema("t-value", 8, 8, sr.Schema{Schema: `"int"` + strings.Repeat(" ", schema.MaxText)})
	r.SeedSchema("large", 1, 9, sr.Schema{Schema: `"int"` + strings.Repeat(" ", schema.MaxText)})
	r.SeedSchema("t-value", 9, 10,
		sr.Schema{Schema: `"int"`, References: []sr.SchemaReference{{Name: "large", Subject: "large", Version: 1}}})
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	if got := ids(s); !slices.Equal(got, []int32{1, 4}) {
		t.Errorf("known are %v", got)
	}
	for _, v := range s.Versions() {
		if (v.Err == nil) != (v.Schema != nil) || (v.Err == nil) != (v.Number == 1 || v.Number == 4) {
			t.Errorf("version %d: %v", v.Number, v.Err)
		}
		if v.Err != nil && len(v.Err.Error()) > 250 {
			t.Errorf("version %d: an error of %d bytes", v.Number, len(v.Err.Error()))
		}
	}
	before := r.requests.Load()
	s.Resolve([]int32{2}) // no second request: the registry has this id
	if r.requests.Load() != before {
		t.Error("an id with an unusable schema caused a request")
	}
}

// TestTexts: schemas beyond the total size are dropped, and the newest are kept.
func TestTexts(t *testing.T) {
	t.Parallel()
	r := serve(t)
	const each = schema.MaxText / 2
	large := sr.Schema{Schema: `"int"` + strings.Repeat(" ", each-len(`"int"`))}
	n := maxTexts/each + 3
	for i := range n {
		r.SeedSchema("t-value", i+1, i+1, large)
	}
	s := client(t, Options{}, r.URL()).Subjects([]string{"t-value", "u-value"})
	r.SeedSchema("u-value", 1, 1000, avro(1))
	look(t, s)
	for _, v := range s.Versions() {
		if known := v.Number > n-maxTexts/each && v.Subject == "t-value"; known != (v.Schema != nil) ||
			known != (v.Err == nil) {
			t.Errorf("%s, version %d: %v", v.Subject, v.Number, v.Err)
		}
	}
	if _, known := s.Known(1); known || !s.Has(1) {
		t.Error("the first one is known, or would cause a request")
	}
}

// TestReferences: a schema is read with its references, each after those that it needs; a circular reference is
// refused.
func TestReferences(t *testing.T) {
	r := serve(t)
	r.SeedSchema("inner", 1, 1,
		sr.Schema{Schema: `{"type":"record","name":"inner","fields":[{"name":"x","type":"double"}]}`})
	r.SeedSchema("middle", 1, 2,
		sr.Schema{Schema: `{"type":"record","name":"middle","fields":[{"name":"i","type":"inner"}]}`,
			References: []sr.SchemaReference{{Name: "inner", Subject: "inner", Version: 1}}})
	r.SeedSchema("t-value", 1, 3,
		sr.Schema{
			Schema: `{"type":"record","name":"outer","fields":[{"name":"m","type":"middle"},{"name":"i","type":"inner"}]}`,
			References: []sr.SchemaReference{{Name: "middle", Subject: "middle", Version: 1},
				{Name: "inner", Subject: "inner", Version: 1}}})
	c := client(t, Options{}, r.URL())
	s := c.Subjects([]string{"t-value"})
	look(t, s)
	if got := ids(s); !slices.Equal(got, []int32{3}) {
		t.Errorf("known are %v: %v", got, s.Versions())
	}
	r.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/subjects/inner/") {
			fmt.Fprint(w,
				`{"subject":"inner","version":1,"id":1,"schema":"{}","references":[{"name":"inner","subject":"inner","version":1}]}`)
			return true
		}
		return false
	})
	again := client(t, Options{}, r.URL()).Subjects([]string{"t-value"})
	look(t, again)
	if v := again.Versions(); len(v) != 1 || v[0].Err == nil || !strings.Contains(v[0].Err.Error(), "lead back") {
		t.Errorf("a circle: %v", v)
	}
}

// TestServers: if the first address does not answer, the second one is used, and is then asked first.
func TestServers(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	var asked atomic.Int64
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "down", http.StatusBadGateway)
	}))
	defer broken.Close()
	s := client(t, Options{}, broken.URL, r.URL()).Subjects([]string{"t-value"})
	look(t, s)
	if n := asked.Load(); n != 1 || len(ids(s)) != 1 {
		t.Errorf("the broken address was asked %d times, known are %v", n, ids(s))
	}
}

// TestCredentials: each request carries the current token; TLS verifies the server; redirects are not followed, because
// they would send the token elsewhere; and no error shows the token.
func TestCredentials(t *testing.T) {
	r := serve(t, srfake.WithAuth("Bearer second"))
	r.SeedSchema("t-value", 1, 1, avro(1))
	secure := httptest.NewTLSServer(r.Handler())
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	token, trusting := "first", &tls.Config{RootCAs: roots}
	o := Options{TLS: func() *tls.Config { return trusting },
		Authorization: func() (string, error) { return "Bearer " + token, nil }}
	s := client(t, o, secure.URL).Subjects([]string{"t-value"})
	if err := s.Look(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "403") ||
		strings.Contains(err.Error(), "first") {
		t.Errorf("with a wrong token: %v", err)
	}
	token = "second"
	look(t, s)
	o.TLS = nil
	if err := client(t, o, secure.URL).Subjects([]string{"t-value"}).Look(t.Context(), 0); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("an untrusted server: %v", err)
	}
	o.Authorization = func() (string, error) { return "", errors.New("token file /t: is gone") }
	if err := client(t, o, r.URL()).Subjects([]string{"t-value"}).Look(t.Context(), 0); err == nil ||
		!strings.Contains(err.Error(), "token file /t: is gone") {
		t.Errorf("without a token: %v", err)
	}
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer elsewhere.Close()
	redirect := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer redirect.Close()
	if err := client(t, Options{}, redirect.URL).Subjects([]string{"t-value"}).Look(t.Context(), 0); err == nil ||
		reached.Load() {
		t.Errorf("a redirection was followed: %v", err)
	}
}

// TestRotation: a client uses a new certificate at once, and closes connections that use the old one.
func TestRotation(t *testing.T) {
	r := serve(t)
	r.SeedSchema("t-value", 1, 1, avro(1))
	var shown atomic.Value
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if certs := req.TLS.PeerCertificates; len(certs) > 0 {
			shown.Store(certs[0].Subject.CommonName)
		}
		r.Handler().ServeHTTP(w, req)
	}))
	secure.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	var now atomic.Pointer[tls.Config]
	s := client(t, Options{TLS: now.Load}, secure.URL).Subjects([]string{"t-value"})
	for _, name := range []string{"first", "second"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotAfter: time.Now().Add(time.Hour)}
		cert, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		now.Store(
			&tls.Config{RootCAs: roots,
				Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}})
		for range 2 {
			look(t, s)
			if got := shown.Load(); got != name {
				t.Errorf("shown is %v, want %s", got, name)
			}
		}
	}
}

// TestBounds: no answer takes more memory than allowed.
func TestBounds(t *testing.T) {
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "[1")
		for r.Context().Err() == nil {
			if _, err := fmt.Fprint(w, strings.Repeat(",1", 1<<16)); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	if err := client(t, Options{}, endless.URL).Subjects([]string{"t-value"}).Look(t.Context(), 0); !errors.Is(err,
		errTooLarge) {
		t.Errorf("an endless answer: %v", err)
	}
	many := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/versions") {
			fmt.Fprint(w, "["+strings.Repeat("1,", MaxVersions)+"1]")
			return
		}
		fmt.Fprint(w, `{"version":1,"id":1,"schema":"\"int\""}`)
	}))
	defer many.Close()
	if err := client(t, Options{}, many.URL).Subjects([]string{"t-value"}).Look(t.Context(), 0); err == nil ||
		!strings.Contains(err.Error(), "more than 10000 versions") {
		t.Errorf("too many versions: %v", err)
	}
}
