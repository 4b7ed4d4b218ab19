package httpapi_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestHost: a request whose Host is not a name of the listener is refused, on every path.
func TestHost(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Http = `hosts = ["metrics.example.org"]`
	x := r.Start()
	x.Until("served", func(monitor.TaskStatus) bool { return x.D.Addr() != "" })
	_, port, err := net.SplitHostPort(x.D.Addr())
	fixtures.Must(t, err)
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:" + port: 200, "192.0.2.7:80": 200, "[::1]:" + port: 200, "[fe80::1%eth0]": 200,
		"localhost": 200, "LocalHost:" + port: 200,
		"metrics.example.org": 200, "Metrics.Example.org.:9": 200,
		"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403, "x.metrics.example.org": 403,
		"localhost.evil.example:" + port: 403, "0x7f000001": 403,
	} {
		for _, path := range []string{"/", "/metrics", "/-/healthy", "/api/v1/status", "/nothing"} {
			want := want
			if want == 200 && path == "/nothing" {
				want = 404
			}
			req, err := http.NewRequest("GET", "http://"+x.D.Addr()+path, nil)
			fixtures.Must(t, err)
			req.Host = host
			res, err := http.DefaultClient.Do(req)
			fixtures.Must(t, err)
			body := fixtures.ReadAll(t, res)
			res.Body.Close()
			if res.StatusCode != want || want == 403 && !strings.Contains(body, "http.hosts") {
				t.Errorf("Host %s, %s: %s %s, want %d", host, path, res.Status, body, want)
			}
		}
	}
	x.End()
}

// TestBasicAuth: without user and password the server shows nothing; with them it shows everything.
func TestBasicAuth(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	file := filepath.Join(r.Dir, "password")
	fixtures.Must(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	r.Http = fmt.Sprintf("[http.basic_auth]\nusername = \"reader\"\npassword_file = %q", file)
	x := r.Start()
	x.Until("served", func(monitor.TaskStatus) bool { return x.D.Addr() != "" })
	ask := func(path string, set func(*http.Request)) (*http.Response, string) {
		req, err := http.NewRequest("GET", "http://"+x.D.Addr()+path, nil)
		fixtures.Must(t, err)
		set(req)
		res, err := http.DefaultClient.Do(req)
		fixtures.Must(t, err)
		defer res.Body.Close()
		return res, fixtures.ReadAll(t, res)
	}
	for _, path := range []string{"/metrics", "/-/healthy", "/-/ready", "/api/v1/status", "/nothing"} {
		for who, set := range map[string]func(*http.Request){
			"nobody":         func(*http.Request) {},
			"empty":          func(req *http.Request) { req.SetBasicAuth("", "") },
			"wrong password": func(req *http.Request) { req.SetBasicAuth("reader", "Secret") },
			"wrong user":     func(req *http.Request) { req.SetBasicAuth("Reader", "secret") },
			"newline":        func(req *http.Request) { req.SetBasicAuth("reader", "secret\n") },
			"bearer":         func(req *http.Request) { req.Header.Set("Authorization", "Bearer secret") },
		} {
			res, body := ask(path, set)
			if res.StatusCode != 401 || !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Basic ") ||
				strings.Contains(body, "orders") {
				t.Errorf("%s, %s: %s %s", who, path, res.Status, body)
			}
		}
	}
	if res, body := ask("/api/v1/status",
		func(req *http.Request) { req.SetBasicAuth("reader", "secret") }); res.StatusCode != 200 ||
		!strings.Contains(body, "orders") {
		t.Errorf("with the password: %s %s", res.Status, body)
	}
	x.End()

	fixtures.Must(t, os.Chmod(file, 0o644))
	if _, err := r.Try(); err == nil || !strings.Contains(err.Error(), "http.basic_auth: password file") {
		t.Errorf("an open password file: %v", err)
	}
}

// TestServerTLS: with [http.tls], a client without TLS learns nothing, and the names in the certificate are names of
// the listener.
func TestServerTLS(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	c := kafkatest.NewCertificate(t)
	cert, key := filepath.Join(r.Dir, "cert.pem"), filepath.Join(r.Dir, "key.pem")
	fixtures.Must(t, os.WriteFile(cert, c.Cert, 0o644))
	fixtures.Must(t, os.WriteFile(key, c.Key, 0o600))
	r.Http = fmt.Sprintf("[http.tls]\ncert_file = %q\nkey_file = %q", cert, key)
	x := r.Start()
	x.Until("served", func(monitor.TaskStatus) bool { return x.D.Addr() != "" })
	if code, body := fixtures.Fetch(t, "http://"+x.D.Addr()+"/api/v1/status"); code != 400 ||
		strings.Contains(body, "orders") {
		t.Errorf("in the clear: %d %s", code, body)
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.Pool}, DisableKeepAlives: true}}
	for host, want := range map[string]int{"": 200, "evil.example": 403, "metrics.example.org": 200} {
		req, err := http.NewRequest("GET", "https://"+x.D.Addr()+"/api/v1/status", nil)
		fixtures.Must(t, err)
		req.Host = host
		res, err := client.Do(req)
		fixtures.Must(t, err)
		if body := fixtures.ReadAll(t, res); res.StatusCode != want ||
			strings.Contains(body, "orders") != (want == 200) {
			t.Errorf("%q: %s %s", host, res.Status, body)
		}
		res.Body.Close()
	}
	x.End()
}

// TestConnectionCap: no more connections are accepted than the cap, and a connection that ends makes room for another.
func TestConnectionCap(t *testing.T) {
	l, err := (&httpapi.Access{HTTP: config.HTTP{Listen: "127.0.0.1:0"}}).Listen()
	fixtures.Must(t, err)
	accepted := make(chan net.Conn, 2*httpapi.MaxConnections)
	done := make(chan error)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				done <- err
				return
			}
			accepted <- conn
		}
	}()
	for range httpapi.MaxConnections + 3 {
		conn, err := net.Dial("tcp", l.Addr().String())
		fixtures.Must(t, err)
		defer conn.Close()
	}
	var first net.Conn
	for range httpapi.MaxConnections {
		first = <-accepted
		defer first.Close()
	}
	select {
	case <-accepted:
		t.Errorf("more than %d connections", httpapi.MaxConnections)
	case <-time.After(200 * time.Millisecond):
	}
	fixtures.Must(t, first.Close())
	first.Close() // closing twice frees only one place
	defer (<-accepted).Close()
	select {
	case <-accepted:
		t.Error("one end made room for two")
	case <-time.After(200 * time.Millisecond):
	}
	fixtures.Must(t, l.Close())
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
}

// TestSlowClients: the server disconnects a client that sends nothing, never ends its request, or does not read.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	x := r.Start()
	x.Until("served", func(monitor.TaskStatus) bool { return x.D.Addr() != "" })
	texts := []string{"", "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n"}
	var conns []net.Conn
	begun := time.Now()
	for _, text := range texts {
		conn, err := net.Dial("tcp", x.D.Addr())
		fixtures.Must(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(text))
		fixtures.Must(t, err)
		fixtures.Must(t, conn.SetReadDeadline(time.Now().Add(httpapi.HeaderTimeout+fixtures.Patience)))
		conns = append(conns, conn)
	}
	for i, conn := range conns {
		var err error
		for buf := make([]byte, 1024); err == nil; {
			_, err = conn.Read(buf)
		}
		if took := time.Since(begun); os.IsTimeout(err) || took < httpapi.HeaderTimeout-time.Second {
			t.Errorf("after %q hung up in %v: %v", texts[i], took, err)
		}
	}
	x.End()
}
