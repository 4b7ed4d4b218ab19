package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// endpoint is a token endpoint over TLS. answer writes the reply to a valid request.
type endpoint struct {
	*httptest.Server
	asked  atomic.Int64
	answer func(w http.ResponseWriter, n int64) // changed only while no request is running
	form   atomic.Pointer[url.Values]
}

func newEndpoint(t *testing.T) (*endpoint, TokenOptions, *atomic.Pointer[string]) {
	t.Helper()
	c := kafkatest.NewCertificate(t)
	e := &endpoint{}
	e.answer = func(w http.ResponseWriter, n int64) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": "token-%d", "token_type": "Bearer", "expires_in": 100}`, n)
	}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := e.asked.Add(1)
		err := r.ParseForm()
		user, secret, basic := r.BasicAuth()
		if !basic { // a refused client then tries the other method
			user, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
		}
		if err != nil || r.Method != "POST" || user != "streamdp" || secret != "hunter2" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "%s is wrong"}`, secret)
			return
		}
		form := r.PostForm
		e.form.Store(&form)
		e.answer(w, n)
	}))
	e.TLS = &tls.Config{Certificates: []tls.Certificate{c.TLS}}
	e.StartTLS()
	t.Cleanup(e.Close)
	var secret atomic.Pointer[string]
	right := "hunter2"
	secret.Store(&right)
	return e, TokenOptions{
		URL: e.URL + "/token", ClientID: "streamdp", Roots: c.Pool,
		Secret: func() (string, error) { return *secret.Load(), nil },
	}, &secret
}

// TestTokens: a token is kept for three quarters of its life. Then a new one is requested. As long as there is none,
// the old token is used until it expires.
func TestTokens(t *testing.T) {
	t.Parallel()
	e, o, secret := newEndpoint(t)
	o.Scopes, o.Audience = []string{"kafka", "read"}, "https://kafka.example"
	x := NewTokens(o)
	now := time.Now()
	x.now = func() time.Time { return now }
	ask := func(want string, asked int64) {
		t.Helper()
		if got, err := x.Token(t.Context()); err != nil || got != want || e.asked.Load() != asked {
			t.Fatalf("%q, %v after %d requests, want %q after %d", got, err, e.asked.Load(), want, asked)
		}
	}
	ask("token-1", 1)
	if f := *e.form.Load(); f.Get("grant_type") != "client_credentials" || f.Get("scope") != "kafka read" ||
		f.Get("audience") != "https://kafka.example" || f.Has("client_secret") {
		t.Errorf("requested with %v", f)
	}
	begun := now
	now = begun.Add(74 * time.Second)
	ask("token-1", 1)
	now = begun.Add(76 * time.Second)
	ask("token-2", 2)
	begun = now

	// The server refuses after 76 s; the old token is still valid for some time.
	wrong := "wrong"
	secret.Store(&wrong)
	now = begun.Add(76 * time.Second)
	asked := int64(2)
	if got, err := x.Token(t.Context()); err != nil || got != "token-2" || e.asked.Load() == asked {
		t.Fatalf("%q, %v", got, err)
	}
	asked = e.asked.Load()
	ask("token-2", asked) // no second request within a second
	now = begun.Add(101 * time.Second)
	_, err := x.Token(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), `: 401 Unauthorized ("invalid_client")`) ||
		!strings.HasPrefix(err.Error(), "token endpoint https://127.0.0.1:") || strings.Contains(err.Error(), "wrong") {
		t.Fatalf("a refusal: %v", err)
	}
	right := "hunter2"
	secret.Store(&right)
	asked = e.asked.Load()
	if _, err := x.Token(t.Context()); err == nil || e.asked.Load() != asked {
		t.Errorf("requested again at once: %v", err)
	}
	now = now.Add(pauseAfterFailure)
	ask(fmt.Sprint("token-", asked+1), asked+1)
}

// TestTokensShared: callers wait for a request that is under way and share its token.
func TestTokensShared(t *testing.T) {
	t.Parallel()
	e, o, _ := newEndpoint(t)
	x := NewTokens(o)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got, err := x.Token(t.Context()); err != nil || got != "token-1" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := e.asked.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	// If one caller cancels, the others must not see an error.
	x = NewTokens(o)
	gone, cancel := context.WithCancel(t.Context())
	answer := e.answer
	e.answer = func(http.ResponseWriter, int64) { cancel(); time.Sleep(10 * time.Millisecond) }
	if _, err := x.Token(gone); err == nil || gone.Err() == nil {
		t.Errorf("a cancelled call: %v", err)
	}
	e.answer = answer
	if _, err := x.Token(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoToken: an invalid token is refused, and no error contains the server's answer.
func TestNoToken(t *testing.T) {
	t.Parallel()
	e, o, _ := newEndpoint(t)
	says := func(code int, text string) func(http.ResponseWriter, int64) {
		return func(w http.ResponseWriter, _ int64) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprint(w, text)
		}
	}
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, int64)
		want   string
	}{
		"no JSON":    {says(200, "s3cret"), "the answer is not a token"},
		"empty":      {says(200, `{}`), "the answer is not a token"},
		"other type": {says(200, `{"access_token": "s3cret", "token_type": "mac"}`), "not a bearer token"},
		"control": {says(200, `{"access_token": "s3cret\u0001auth=x", "token_type": "bearer"}`),
			"not a bearer token"},
		"server trouble": {says(503, "s3cret"), "503 Service Unavailable"},
		"elsewhere": {func(w http.ResponseWriter, _ int64) {
			w.Header().Set("Location", "http://192.0.2.1/s3cret")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "307 Temporary Redirect"},
	} {
		e.answer = test.answer
		got, err := NewTokens(o).Token(t.Context())
		if err == nil || got != "" || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// In this case the server does not state the token's life.
	e.answer = says(200, `{"access_token": "a", "token_type": "bearer"}`)
	x, before := NewTokens(o), e.asked.Load()
	for range 2 {
		if got, err := x.Token(t.Context()); err != nil || got != "a" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if n := e.asked.Load() - before; n != 2 {
		t.Errorf("%d requests", n)
	}

	other := o
	other.Roots = x509.NewCertPool()
	var unknown x509.UnknownAuthorityError
	if _, err := NewTokens(other).Token(t.Context()); !errors.As(err, &unknown) ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("another authority: %v", err)
	}
	other = o
	other.Secret = func() (string, error) { return "", errors.New("no file") }
	if _, err := NewTokens(other).Token(t.Context()); err == nil || err.Error() != "no file" {
		t.Errorf("without a secret: %v", err)
	}
}

// TestCheckToken checks the alphabet of RFC 6750.
func TestCheckToken(t *testing.T) {
	for text, good := range map[string]bool{
		"a": true, "eyJhbGciOiJub25lIn0.e30.": true, "AZaz09-._~+/==": true,
		"": false, "=": false, "a b": false, "a=b": false, "a\x01": false, "ä": false,
		strings.Repeat("a", maxToken+1): false,
	} {
		if err := checkToken(text); (err == nil) != good {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}
