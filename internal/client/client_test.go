package client

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/task"
)

// daemon serves answer at the control socket of a new directory, and returns the directory.
func daemon(t *testing.T, answer http.HandlerFunc) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "client") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, httpapi.ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: answer}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return dir
}

// TestControl: a request reaches the daemon that runs on a directory. The daemon's answer may be an error. It is not an
// error if no daemon runs there.
func TestControl(t *testing.T) {
	asked, err := Change(t.Context(), t.TempDir(), task.Request{Kind: task.RequestOpen})
	if asked || err != nil {
		t.Errorf("no daemon: %t, %v", asked, err)
	}
	if a, err := Reload(t.Context(), t.TempDir(), httpapi.ReloadRequest{}); a != nil || err != nil {
		t.Errorf("no daemon: %+v, %v", a, err)
	}
	dir := daemon(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /epoch/open":
			fmt.Fprint(w, `{"status":"success"}`)
		case "POST /epoch/close":
			fmt.Fprint(w, `{"status":"error","error":"no open epoch"}`)
		case "POST /reload":
			fmt.Fprint(w, `{"status":"error","error":"refused","configuration":true}`)
		default:
			http.Error(w, "nothing", http.StatusNotFound)
		}
	})
	for kind, want := range map[string]string{
		"open": "<nil>", "close": "no open epoch", "recover": "the daemon answered 404 Not Found",
	} {
		if asked, err := Change(t.Context(), dir, task.Request{Kind: kind}); !asked || fmt.Sprint(err) != want {
			t.Errorf("%s: %t, %v", kind, asked, err)
		}
	}
	a, err := Reload(t.Context(), dir, httpapi.ReloadRequest{})
	if err != nil || a == nil || a.Error != "refused" || !a.Configuration {
		t.Errorf("reload: %+v, %v", a, err)
	}
}

// TestGroup: every member is asked, and a member that does not answer does not affect the others. The password is never
// sent over an unencrypted connection.
func TestGroup(t *testing.T) {
	password := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, p, ok := r.BasicAuth(); ok {
			password = p
		}
		fmt.Fprint(w, `{"status":"success","data":{"tasks":[{"stream":"orders","partition":3}]}}`)
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.HTTP.BasicAuth = &config.BasicAuth{Username: "reader", PasswordFile: file}
	all := Endpoint{}.Group(t.Context(), cfg, []cluster.MemberStatus{
		{Instance: "a", URL: s.URL}, {Instance: "b"}, {Instance: "c", URL: "http://127.0.0.1:1"},
	})
	if len(all) != 3 || all[0].Error != "" || all[1].Error != "the instance advertises no address: set "+
		"cluster.advertise" ||
		!strings.HasPrefix(all[2].Error, "no daemon answers: ") {
		t.Fatalf("the answers are %+v", all)
	}
	of, err := Decode(all[0].Status)
	if err != nil || len(of.Tasks) != 1 || of.Tasks[0].Stream != "orders" || of.Tasks[0].Partition != 3 ||
		of.Group != nil {
		t.Errorf("the status is %+v, %v", of, err)
	}
	if password != "" {
		t.Error("a member got the password over an unencrypted connection")
	}
	given := Endpoint{URL: s.URL, User: "reader", PasswordFile: file}
	if _, err := given.Status(t.Context(), nil); err != nil || password != "secret" {
		t.Errorf("asked with the password %q: %v", password, err)
	}
}
