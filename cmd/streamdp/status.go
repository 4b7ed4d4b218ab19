package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"streamdp/config"
	"streamdp/stream"
	"streamdp/stream/core"
)

func statusCommand(g *globals) *cobra.Command {
	var e endpoint
	c := &cobra.Command{
		Use:   "status [-c FILE | --url URL]",
		Short: "Show what a running daemon does",
		RunE: func(c *cobra.Command, _ []string) error {
			var cfg *config.Config
			if e.url == "" && g.config != "" {
				var err error
				if cfg, err = g.load(); err != nil {
					return err
				}
			}
			client, req, err := e.request(c.Context(), cfg)
			if err != nil {
				return err
			}
			res, err := client.Do(req)
			if err != nil {
				return fmt.Errorf("no daemon answers: %w", err)
			}
			defer res.Body.Close()
			var answer struct {
				Status string
				Error  string
				Data   json.RawMessage
			}
			if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Status != "success" {
				if answer.Error != "" {
					answer.Error = ": " + answer.Error
				}
				return fmt.Errorf("%s answered %s, not a status%s", req.URL.Redacted(), res.Status, answer.Error)
			}
			if g.json {
				fmt.Fprintf(g.stdout, "%s\n", answer.Data)
				return nil
			}
			var data struct{ Tasks []stream.TaskStatus }
			if err := json.Unmarshal(answer.Data, &data); err != nil {
				return err
			}
			return printStatus(g, data.Tasks)
		},
	}
	c.Flags().StringVar(&e.url, "url", "", "the daemon's HTTP address (default: http.listen of the configuration, else http://127.0.0.1:9464)")
	c.Flags().StringVar(&e.caFile, "ca-file", "", "certificates (PEM) to trust instead of the system's (default with -c: http.tls.cert_file)")
	c.Flags().StringVar(&e.user, "user", "", "user of http.basic_auth; needs --password-file")
	c.Flags().StringVar(&e.passwordFile, "password-file", "", "file that holds the password")
	return c
}

// endpoint says how to reach a daemon's HTTP server.
type endpoint struct {
	url, caFile        string
	user, passwordFile string
}

// request returns a request for the status, and the client that sends it. What the flags do
// not set comes from the configuration, if there is one.
func (e endpoint) request(ctx context.Context, cfg *config.Config) (*http.Client, *http.Request, error) {
	if (e.user == "") != (e.passwordFile == "") {
		return nil, nil, usagef("--user and --password-file need each other")
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if e.caFile != "" {
		if trust, err = config.LoadTLS(&config.TLS{CAFile: e.caFile}, false); err != nil {
			return nil, nil, configError{err}
		}
	}
	groupReadable := false
	if e.url == "" {
		e.url = "http://127.0.0.1:9464"
	}
	if cfg != nil {
		groupReadable = cfg.State.KeyGroupReadable
		host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
		if err != nil {
			return nil, nil, configError{err}
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		e.url = "http://" + net.JoinHostPort(host, port)
		if t := cfg.HTTP.TLS; t != nil {
			e.url = "https://" + net.JoinHostPort(host, port)
			if e.caFile == "" {
				if trust, err = trustOnly(t.CertFile); err != nil {
					return nil, nil, configError{err}
				}
			}
		}
		if b := cfg.HTTP.BasicAuth; b != nil && e.user == "" {
			e.user, e.passwordFile = b.Username, b.PasswordFile
		}
	}
	if !strings.Contains(e.url, "://") {
		e.url = "http://" + e.url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(e.url, "/")+"/api/v1/status", nil)
	if err != nil {
		return nil, nil, usageError{err}
	}
	if e.user != "" {
		password, err := config.LoadPassword(e.passwordFile, groupReadable)
		if err != nil {
			return nil, nil, configError{err}
		}
		req.SetBasicAuth(e.user, password)
	}
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: trust, Proxy: http.ProxyFromEnvironment},
		// The password is for this address only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, req, nil
}

// trustOnly trusts a listener that shows the certificate in a file, under whatever name or
// address it is reached.
func trustOnly(certFile string) (*tls.Config, error) {
	data, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("certificate %s: no certificate in PEM", certFile)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // instead: it is this certificate, byte for byte
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return fmt.Errorf("the listener's certificate is not that of %s", certFile)
			}
			return nil
		},
	}, nil
}

func printStatus(g *globals, tasks []stream.TaskStatus) error {
	w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tSTATE\tEPOCH\tSTEP\tOFFSET\tLAG\tOUTBOX\tEPSILON\tCHARGED\tLIMIT")
	for _, t := range tasks {
		step := fmt.Sprint(t.Step)
		if t.Horizon > 0 {
			step += fmt.Sprintf("/%d", t.Horizon)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%g\t%s\t%g\n", core.Task{Stream: t.Stream, Partition: t.Partition}, t.State, t.Epoch, step, t.NextOffset, t.Lag, t.Outbox,
			t.Epsilon, core.AtMost(t.ChargedEpsilon), t.LimitEpsilon)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range tasks {
		if words := personsOf(&t); words != "" {
			fmt.Fprintf(g.stdout, "\n%s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, words)
		}
		if t.Message != "" {
			fmt.Fprintf(g.stdout, "\n%s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, t.Message)
		}
		for _, warning := range t.Warnings {
			fmt.Fprintf(g.stdout, "\n%s-%d: warning: %s\n", t.Stream, t.Partition, warning)
		}
		if words := verdicts[t.Verdict]; words != "" {
			fmt.Fprintf(g.stdout, "\n%s: bounds %s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, t.Verdict, words)
		}
	}
	return nil
}

// personsOf says in words what the numbers of a task are about, "" where that is single records.
func personsOf(t *stream.TaskStatus) string {
	if t.Unit == "" || t.Unit == "record" {
		return ""
	}
	p := t.Person
	if p == nil {
		return "epsilon and limit are those of a person, with all records"
	}
	text := fmt.Sprintf("epsilon, charged and limit are those of a person (%s, population %s), who counts in at most %d steps, at least %d apart, with at most %d records in each",
		p.Key, p.Population, p.Cap, p.Separation, p.PerStep)
	if p.Period > 0 {
		text += fmt.Sprintf(", of each period of %d steps; somebody with records in several periods pays for each", p.Period)
	}
	if p.EpsilonRecord != nil {
		text += fmt.Sprintf("; one record pays at most epsilon %g", *p.EpsilonRecord)
	}
	return text
}

// verdicts say in words what a release says of bounds that a warm-up found.
var verdicts = map[string]string{
	"partial": "a column is frozen, for too few rows differ there; its mean is its centre and its moments are 0",
	"stale":   "fewer rows count in full than in the warm-up, so the constants no longer fit; another epoch finds new ones",
	"biased":  "clipping takes more than twice what the noise is at the horizon, or at step 10 000 (tune says another): se_with_clipping estimates that",
	"fail":    "the warm-up found none: too few valid records (is a column mistyped?), or no column varies; its release says how many it needs",
}
