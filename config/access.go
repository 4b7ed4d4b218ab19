package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// SASL is the table [kafka.sasl]: how this client authenticates to the brokers.
type SASL struct {
	// Mechanism is "plain", "scram-sha-256", "scram-sha-512", "oauthbearer" or "aws-msk-iam".
	// Required.
	Mechanism string `toml:"mechanism"`
	// Username is required for plain and scram.
	Username string `toml:"username"`
	// PasswordFile is the file of the password. Required for plain and scram.
	PasswordFile string `toml:"password_file"`

	// TokenFile is a file with a token, which another program keeps up to date.
	TokenFile string `toml:"token_file"`
	// TokenURL is an OAuth server's token endpoint. oauthbearer needs either TokenFile or TokenURL.
	TokenURL string `toml:"token_url"`
	// TokenCAFile holds the certificate authorities to trust for TokenURL instead of the system's.
	TokenCAFile string `toml:"token_ca_file"`
	// ClientID and ClientSecretFile are required with TokenURL.
	ClientID         string `toml:"client_id"`
	ClientSecretFile string `toml:"client_secret_file"`
	// Scopes and Audience go into the request for a token. An empty value is not sent.
	Scopes   []string `toml:"scopes"`
	Audience string   `toml:"audience"`
	// Extensions are sent with the token, each NAME=VALUE.
	Extensions []string `toml:"extensions"`

	// Region is the AWS region of the brokers. Required for aws-msk-iam.
	Region string `toml:"region"`
	// RoleARN is the AWS role to assume. Empty: requests are signed with the AWS keys directly, without a role.
	RoleARN string `toml:"role_arn"`
}

// Token reports whether the mechanism sends a token.
func (s *SASL) Token() bool { return s.Mechanism == "oauthbearer" }

// AWS reports whether the mechanism signs with AWS keys.
func (s *SASL) AWS() bool { return s.Mechanism == "aws-msk-iam" }

// mechanismKeys lists the keys of [kafka.sasl] that a mechanism uses, apart from "mechanism" itself.
func mechanismKeys(mechanism string) []string {
	switch mechanism {
	case "oauthbearer":
		return []string{"token_file", "token_url", "token_ca_file", "client_id", "client_secret_file", "scopes",
			"audience", "extensions"}
	case "aws-msk-iam":
		return []string{"region", "role_arn"}
	}
	return []string{"username", "password_file"}
}

// checkSASL reports keys that the mechanism needs but the file lacks, and keys that the mechanism does not use.
func (d *document) checkSASL(c *Config) {
	s, table := c.Kafka.SASL, toml.Key{"kafka", "sasl"}
	if s == nil || !d.Sound(under(table, "mechanism")) {
		return
	}
	own := mechanismKeys(s.Mechanism)
	for _, k := range root().At("kafka", "sasl").Children {
		if k.Name != "mechanism" && !slices.Contains(own, k.Name) {
			d.refuse(table, fmt.Sprintf("must be absent with mechanism = %q", s.Mechanism), k.Name)
		}
	}
	need := func(names ...string) {
		for _, name := range names {
			if key := under(table, name); d.Written(key) == nil {
				d.Add(key, -1, "required", nil)
			}
		}
	}
	switch {
	case s.Token() && s.TokenFile == "" && s.TokenURL == "":
		if key := under(table, "token_url"); d.Sound(key) && d.Sound(under(table, "token_file")) {
			d.Add(key, -1, "required unless token_file is set", nil)
		}
	case s.Token() && s.TokenFile != "":
		d.refuse(table, "must be absent with token_file: another program fetches that token",
			"token_url", "token_ca_file", "client_id", "client_secret_file", "scopes", "audience")
	case s.Token():
		need("client_id", "client_secret_file")
	case s.AWS():
		need("region")
	default:
		need(own...)
	}
}

// tokenURL is the rule of token endpoints. It demands TLS because the client's secret is sent there.
var tokenURL = toml.MustBe(`a URL that begins with "https://" ("http://" on a loopback address), without a user`,
	func(v any) bool {
		u, err := url.Parse(v.(string))
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
			return false
		}
		port := u.Port()
		if port == "" {
			port = "80"
		}
		return u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Hostname()+":"+port)
	})

// scope is the rule of OAuth scopes, from RFC 6749, section 3.3.
var scope = toml.MustBe("a scope: printable, without spaces, quotes and backslashes", func(v any) bool {
	s := v.(string)
	return s != "" &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
})

var extensionPattern = regexp.MustCompile(`^[A-Za-z]+=[\x20-\x7e]+$`)

// extension is the rule of SASL extensions, from RFC 7628, section 3.1. The RFC reserves the name auth.
var extension = toml.MustBe(`NAME=VALUE, a name of letters that is not "auth"`, func(v any) bool {
	s := v.(string)
	name, _, _ := strings.Cut(s, "=")
	return extensionPattern.MatchString(s) && name != "auth"
})

var (
	region = toml.MustBe(`a region of AWS, such as "eu-central-1"`, matches(`^[a-z]{2,}(-[a-z0-9]+)+$`))
	role   = toml.MustBe(`the ARN of a role, "arn:aws:iam::ACCOUNT:role/NAME"`,
		matches(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\x21-\x7e]{1,512}$`))
)

// matches returns a check for a rule: it holds if the value matches the regular expression.
func matches(pattern string) func(any) bool {
	p := regexp.MustCompile(pattern)
	return func(v any) bool { return p.MatchString(v.(string)) }
}
