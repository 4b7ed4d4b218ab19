package connect_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kfake"
)

// TestCredentials runs a daemon against a broker that requires TLS, a client certificate and a password, all from
// files.
func TestCredentials(t *testing.T) {
	t.Parallel()
	cert := kafkatest.NewCertificate(t)
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{
		kfake.TLS(
			&tls.Config{Certificates: []tls.Certificate{cert.TLS}, ClientAuth: tls.RequireAndVerifyClientCert,
				ClientCAs: cert.Pool}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "streamdp", "secret"),
	}})
	fixtures.Must(t, err)
	t.Cleanup(b.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"ca":       string(cert.Cert),
		"key.pem":  string(cert.Key),
		"password": "secret\n",
	} {
		fixtures.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	tables := fmt.Sprintf(`
[kafka.tls]
ca_file   = %q
cert_file = %q
key_file  = %q
[kafka.sasl]
mechanism     = "scram-sha-512"
username      = "streamdp"
password_file = %q
`, filepath.Join(dir, "ca"), filepath.Join(dir, "ca"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "password"))
	r := streamtest.NewRigAt(t, b, b.Addr(), tables+fixtures.OrdersStream)
	cluster, err := connect.Cluster(r.Options().Config)
	fixtures.Must(t, err)
	if r.Client, err = kafka.NewClient(cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Client.Close)
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()

	// Unusable files are reported at once, without their content.
	f := func(file, text string, mode os.FileMode, want string) {
		t.Helper()
		path := filepath.Join(dir, file)
		was, err := os.ReadFile(path)
		fixtures.Must(t, err)
		fixtures.Must(t, os.WriteFile(path, []byte(text), 0o600))
		fixtures.Must(t, os.Chmod(path, mode))
		defer func() {
			fixtures.Must(t, os.Chmod(path, 0o600))
			fixtures.Must(t, os.WriteFile(path, was, 0o600))
		}()
		if _, err := stream.New(r.Options()); !errors.Is(err, connect.ErrCredentials) ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
	}
	f("password", "hunter2\n", 0o644, "must not be accessible to others")
	f("password", "hunter2\nhunter3\n", 0o600, "must contain one line")
	f("password", "", 0o600, "must not be empty")
	f("key.pem", string(cert.Key), 0o640, "must not be readable for its group")
	f("key.pem", "hunter2", 0o600, "certificate")
	f("ca", "hunter2", 0o600, "no certificate in PEM")
	fixtures.Must(t, os.Remove(filepath.Join(dir, "ca")))
	if _, err := stream.New(r.Options()); !errors.Is(err, connect.ErrCredentials) {
		t.Errorf("without authorities: %v", err)
	}
}

// TestWrongPassword: if the cluster refuses the daemon's password, the daemon waits, and says why.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "streamdp", "secret"),
	}})
	fixtures.Must(t, err)
	t.Cleanup(b.Close)
	password := filepath.Join(t.TempDir(), "password")
	fixtures.Must(t, os.WriteFile(password, []byte("hunter2"), 0o600))
	r := streamtest.NewRigAt(t, b, b.Addr(),
		fmt.Sprintf("[kafka.sasl]\nmechanism = \"plain\"\nusername = \"streamdp\"\npassword_file = %q\n", password)+
			fixtures.OrdersStream)
	x := r.Start()
	x.Until("it waits", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRetrying && strings.Contains(s.Message, "authentication")
	})
	if strings.Contains(r.Log.String(), "hunter") {
		t.Error("the log shows the password")
	}
	x.End()

	fixtures.Must(t, os.WriteFile(password, []byte("secret"), 0o600))
	c, err := kafka.NewClient(
		kafka.Options{Brokers: b.Addrs(),
			SASL: kafka.SASL{Mechanism: "plain", Username: "streamdp", Password: "secret"}})
	fixtures.Must(t, err)
	defer c.Close()
	r.Client = c
	r.Produce(0, 150)
	x = r.Start()
	x.Published(1)
	x.End()
}

// TestTokenFiles: token files and the client secret's file must have the permissions of a key file and the right
// content. The token file is read again for each connection.
func TestTokenFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		fixtures.Must(t, os.WriteFile(file, []byte(text), 0o600))
		fixtures.Must(t, os.Chmod(file, mode))
	}
	parse := func(table string) *config.Config {
		t.Helper()
		c, err := config.Parse("test.toml",
			fmt.Appendf(nil,
				"[kafka]\nbrokers = [\"localhost:9092\"]\n[kafka.sasl]\nmechanism = \"oauthbearer\"\n%s\n[state]\n"+
					"dir = \"s\"\nkey_file = \"k\"\n%s", table, fixtures.OrdersStream))
		fixtures.Must(t, err)
		return c
	}
	tokens := parse(fmt.Sprintf("token_file = %q\nextensions = [\"a=b=c\"]", file))
	secret := parse(fmt.Sprintf("token_url = \"https://localhost/\"\nclient_id = \"c\"\nclient_secret_file = %q", file))
	write("hunter2.a-b\n", 0o600)
	o, err := connect.Cluster(tokens)
	fixtures.Must(t, err)
	for _, want := range []string{"hunter2.a-b", "hunter3"} {
		write(want+"\n", 0o600)
		if x, err := o.SASL.Token(t.Context()); err != nil || x.Text != want ||
			fmt.Sprint(x.Extensions) != "[[a b=c]]" {
			t.Errorf("%+v, %v", x, err)
		}
	}
	_, err = connect.Cluster(secret)
	fixtures.Must(t, err)
	for _, test := range []struct {
		c    *config.Config
		text string
		mode os.FileMode
		want string
	}{
		{tokens, "hunter2", 0o644, "must not be accessible to others"},
		{tokens, "", 0o600, "must contain one token"},
		{tokens, "hunter2\nhunter3", 0o600, "must contain one token"},
		{tokens, "hunter{2}", 0o600, "not a bearer token"},
		{secret, "hunter2", 0o640, "must not be readable for its group"},
		{secret, "hunter2\nhunter3", 0o600, "must contain one line"},
	} {
		write(test.text, test.mode)
		if _, err := connect.Cluster(test.c); !errors.Is(err, connect.ErrCredentials) ||
			!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%q, %o: %v, want %s", test.text, test.mode, err, test.want)
		}
	}
}
