package connect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
)

// ErrCredentials says that a certificate, key or password, for the cluster or the HTTP server, cannot be used.
var ErrCredentials = errors.New("credentials")

// ErrCluster says that a command needs the files of a state directory, but the configuration has a table [cluster].
var ErrCluster = errors.New(
	"not possible with [cluster] in this version: it needs the files of a state directory; streamdp cluster export " +
		"writes a read-only copy of them")

// Cluster returns the options for connecting to the cluster of a configuration. It reads the certificates and the
// password.
//
// Errors: ErrCredentials.
func Cluster(c *config.Config) (kafka.Options, error) {
	o, _, err := KafkaOptions(c)
	return o, err
}

// KafkaOptions is like Cluster, and also returns the files of [kafka.tls], or nil if there are none. Use it in a
// process that runs long enough for certificates to be replaced.
func KafkaOptions(c *config.Config) (o kafka.Options, files *credentials.Rotation, err error) {
	o = kafka.Options{Brokers: c.Kafka.Brokers, ClientID: c.Kafka.ClientID}
	if t := c.Kafka.TLS; t != nil {
		if files, err = credentials.OpenTLS(credentials.TLSFiles(*t), c.State.KeyGroupReadable); err != nil {
			return o, nil, fmt.Errorf("%w: kafka.tls: %w", ErrCredentials, err)
		}
		o.TLS = files.Config
	}
	if s := c.Kafka.SASL; s != nil {
		if o.SASL, err = saslOf(s, c.State.KeyGroupReadable); err != nil {
			return o, nil, fmt.Errorf("%w: %w", ErrCredentials, err)
		}
	}
	return o, files, nil
}

// saslOf returns the credentials of [kafka.sasl]. It fails if a file cannot be used now, even if the file is read again
// later.
func saslOf(s *config.SASL, groupReadable bool) (kafka.SASL, error) {
	o := kafka.SASL{Mechanism: s.Mechanism, Username: s.Username}
	if s.PasswordFile != "" {
		var err error
		if o.Password, err = credentials.LoadPassword(s.PasswordFile, groupReadable); err != nil {
			err = fmt.Errorf("kafka.sasl.password_file: %w", err)
		}
		return o, err
	}
	if s.AWS() {
		a, err := credentials.NewAWS(context.Background(), s.Region, s.RoleARN, "streamdp")
		if err != nil {
			return o, err
		}
		o.Sign = a.Sign
		return o, nil
	}
	text, err := tokens(s, groupReadable)
	if err != nil {
		return o, err
	}
	var extensions [][2]string
	for _, x := range s.Extensions {
		name, value, _ := strings.Cut(x, "=")
		extensions = append(extensions, [2]string{name, value})
	}
	o.Token = func(ctx context.Context) (kafka.Token, error) {
		t, err := text(ctx)
		return kafka.Token{Text: t, Extensions: extensions}, err
	}
	return o, nil
}

// tokens returns a function that gives a token, from a file or a token endpoint.
func tokens(s *config.SASL, groupReadable bool) (func(context.Context) (string, error), error) {
	if s.TokenFile != "" {
		load := func(context.Context) (string, error) {
			return credentials.LoadToken(s.TokenFile, groupReadable)
		}
		_, err := load(context.Background())
		return load, err
	}
	secret := func() (string, error) { return credentials.LoadPassword(s.ClientSecretFile, groupReadable) }
	if _, err := secret(); err != nil {
		return nil, fmt.Errorf("kafka.sasl.client_secret_file: %w", err)
	}
	trust, err := credentials.OpenTLS(credentials.TLSFiles{CAFile: s.TokenCAFile}, groupReadable)
	if err != nil {
		return nil, fmt.Errorf("kafka.sasl.token_ca_file: %w", err)
	}
	return credentials.NewTokens(credentials.TokenOptions{
		URL: s.TokenURL, ClientID: s.ClientID, Secret: secret, Scopes: s.Scopes, Audience: s.Audience,
		Roots: trust.Config().RootCAs,
	}).Token, nil
}

// Right is a resource of the cluster and the operations that a user needs on it.
type Right = kgroup.Resource

// ErrSilent says that the brokers do not tell what a user may do.
var ErrSilent = kgroup.ErrSilent

// Rights returns the permissions that a daemon with this configuration needs, each resource once. docs/operations.md
// has the table.
func Rights(c *config.Config) (needs []Right) {
	need := func(kind, name string, operations ...string) {
		if name == "" {
			return
		}
		i := slices.IndexFunc(needs, func(r Right) bool { return r.Kind == kind && r.Name == name })
		if i < 0 {
			needs = append(needs, Right{Kind: kind, Name: name})
			i = len(needs) - 1
		}
		for _, op := range operations {
			if !slices.Contains(needs[i].Operations, op) {
				needs[i].Operations = append(needs[i].Operations, op)
			}
		}
	}
	for _, s := range c.Streams {
		need("topic", s.Input.Topic, "Read", "DescribeConfigs")
		need("topic", s.Output.Topic, "Read", "Write")
		if s.Output.Create {
			need("topic", s.Output.Topic, "Create")
		}
		if s.DeadLetter.Mode != "off" {
			need("topic", s.DeadLetter.Topic, "Write")
		}
	}
	need("topic", c.Kafka.BoundaryTopic, "Read", "Write", "DescribeConfigs", "Create")
	need("topic", c.Kafka.ControlTopic, "Read", "Write", "DescribeConfigs", "Create")
	need("group", c.Kafka.Group, "Read")
	if g := c.Cluster; g != nil {
		for _, topic := range []string{g.StateTopic(), g.LedgerTopic(), g.ControlTopic(), g.PartialsTopic()} {
			need("topic", topic, "Read", "Write", "Describe", "DescribeConfigs")
		}
		need("group", g.Group, "Read", "Describe")
		need("transactional-id", g.Group+"-", "Write", "Describe")
	}
	return needs
}

// MissingRights returns those permissions in needs that the configured user lacks. It does not change the cluster.
//
// Errors: ErrSilent, or an error if the cluster cannot be reached.
func MissingRights(ctx context.Context, o kafka.Options, needs []Right) ([]Right, error) {
	return kgroup.Missing(ctx, o, needs)
}
