package client

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
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Endpoint says how to reach a daemon's HTTP server. What is empty comes from the configuration, if there
// is one.
type Endpoint struct {
	URL    string
	CAFile string // certificates to trust instead of the system's
	// User and PasswordFile are for http.basic_auth. They need each other.
	User, PasswordFile string
}

// Instance is what an instance of a group answered.
type Instance struct {
	Instance string          `json:"instance"`
	URL      string          `json:"url"`
	Error    string          `json:"error,omitempty"` // why there is no status
	Status   json.RawMessage `json:"status,omitempty"`
}

// Status has the parts of a status that commands show.
type Status struct {
	Tasks    []monitor.TaskStatus
	Patterns []httpapi.PatternStatus
	Group    *cluster.Status // nil: the daemon is in no group
}

// Decode reads the status that a daemon answered.
func Decode(answer json.RawMessage) (s Status, err error) {
	err = json.Unmarshal(answer, &s)
	return s, err
}

// Group asks all members of a group for their status, at the same time, and returns their answers in the
// order of the members.
func (e Endpoint) Group(ctx context.Context, cfg *config.Config, members []cluster.MemberStatus) []Instance {
	all := make([]Instance, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			of := e
			all[i].Instance, all[i].URL, of.URL = m.Instance, m.URL, m.URL
			err := fmt.Errorf("it advertises no address")
			if of.URL != "" {
				all[i].Status, err = of.Status(ctx, cfg)
			}
			if err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return all
}

// Status asks a daemon for its status, which [Decode] reads. cfg is nil where there is no configuration. With
// a configuration, URL is the address that a member of the group advertises: it gets no password but over TLS.
//
// Errors: an [exit.Usage] or an [exit.Config] where the daemon cannot be asked this way.
func (e Endpoint) Status(ctx context.Context, cfg *config.Config) (json.RawMessage, error) {
	client, req, err := e.request(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no daemon answers: %w", err)
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
		return nil, fmt.Errorf("%s answered %s, not a status%s", req.URL.Redacted(), res.Status, answer.Error)
	}
	return answer.Data, nil
}

// request returns a request for the status, and the client that sends it.
func (e Endpoint) request(ctx context.Context, cfg *config.Config) (*http.Client, *http.Request, error) {
	if (e.User == "") != (e.PasswordFile == "") {
		return nil, nil, exit.Usagef("--user and --password-file need each other")
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if e.CAFile != "" {
		files, err := credentials.OpenTLS(credentials.TLSFiles{CAFile: e.CAFile}, false)
		if err != nil {
			return nil, nil, exit.Config{Err: err}
		}
		trust = files.Config()
	}
	groupReadable := false
	member := cfg != nil && e.URL != "" // of a group, at an address that it says of itself
	if cfg == nil && e.URL == "" {
		e.URL = "http://127.0.0.1:9464"
	}
	if cfg != nil {
		groupReadable = cfg.State.KeyGroupReadable
		if !member {
			host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
			if err != nil {
				return nil, nil, exit.Config{Err: err}
			}
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				host = "127.0.0.1"
			}
			e.URL = "http://" + net.JoinHostPort(host, port)
			if cfg.HTTP.TLS != nil {
				e.URL = "https://" + net.JoinHostPort(host, port)
			}
		}
		if t := cfg.HTTP.TLS; t != nil && e.CAFile == "" {
			if trust, err = trustOnly(t.CertFile); err != nil {
				return nil, nil, exit.Config{Err: err}
			}
		}
		if member && !strings.HasPrefix(e.URL, "https://") {
			e.User = "" // whoever is in the group could ask for the password otherwise
		} else if b := cfg.HTTP.BasicAuth; b != nil && e.User == "" {
			e.User, e.PasswordFile = b.Username, b.PasswordFile
		}
	}
	if !strings.Contains(e.URL, "://") {
		e.URL = "http://" + e.URL
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(e.URL, "/")+"/api/v1/status", nil)
	if err != nil {
		return nil, nil, exit.Usage{Err: err}
	}
	if e.User != "" {
		password, err := credentials.LoadPassword(e.PasswordFile, groupReadable)
		if err != nil {
			return nil, nil, exit.Config{Err: err}
		}
		req.SetBasicAuth(e.User, password)
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
