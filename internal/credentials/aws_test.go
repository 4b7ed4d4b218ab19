package credentials

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// signature computes Signature Version 4 of a GET request as the AWS documentation describes it ("Authenticating
// requests: using query parameters"). query has all parameters except the signature.
func signature(secret, host, path string, query url.Values, payload string) string {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	canonical := strings.Join([]string{
		"GET", path, strings.ReplaceAll(query.Encode(), "+", "%20"), "host:" + host, "",
		query.Get("X-Amz-SignedHeaders"), payload,
	}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	_, scope, _ := strings.Cut(query.Get("X-Amz-Credential"), "/")
	key := []byte("AWS4" + secret)
	for _, part := range strings.Split(scope, "/") {
		key = mac(key, part)
	}
	return hex.EncodeToString(
		mac(key,
			strings.Join([]string{"AWS4-HMAC-SHA256", query.Get("X-Amz-Date"), scope, hex.EncodeToString(sum[:])},
				"\n")))
}

// TestSignature: the function signature gives the result of the example in the AWS documentation.
func TestSignature(t *testing.T) {
	got := signature("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "examplebucket.s3.amazonaws.com",
		"/test.txt", url.Values{
			"X-Amz-Algorithm":  {"AWS4-HMAC-SHA256"},
			"X-Amz-Credential": {"AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"},
			"X-Amz-Date":       {"20130524T000000Z"}, "X-Amz-Expires": {"86400"}, "X-Amz-SignedHeaders": {"host"},
		}, "UNSIGNED-PAYLOAD")
	if got != "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404" {
		t.Error(got)
	}
}

// alone isolates a test from the keys and settings of the machine.
func alone(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_STS", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// checkLogin checks a login message to a broker, and returns the key that signed it.
func checkLogin(t *testing.T, msg []byte, host, region, token string, secrets map[string]string,
	now time.Time) (key string) {
	t.Helper()
	var m map[string]string
	if err := json.Unmarshal(msg, &m); err != nil {
		t.Fatal(err)
	}
	key, scope, _ := strings.Cut(m["x-amz-credential"], "/")
	query := url.Values{
		"Action": {"kafka-cluster:Connect"}, "X-Amz-Algorithm": {"AWS4-HMAC-SHA256"},
		"X-Amz-Credential": {m["x-amz-credential"]},
		"X-Amz-Date":       {now.UTC().Format("20060102T150405Z")}, "X-Amz-Expires": {"900"},
		"X-Amz-SignedHeaders": {"host"},
	}
	n := 10
	if token != "" {
		query.Set("X-Amz-Security-Token", token)
		n++
	}
	for name := range query {
		if m[strings.ToLower(name)] != query.Get(name) {
			t.Errorf("%s is %q, want %q", name, m[strings.ToLower(name)], query.Get(name))
		}
	}
	if len(m) != n || m["version"] != "2020_10_22" || m["host"] != host || m["user-agent"] != "streamdp" ||
		scope != now.UTC().Format("20060102")+"/"+region+"/kafka-cluster/aws4_request" {
		t.Errorf("%d entries: %v", len(m), m)
	}
	const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	if want := signature(secrets[key], host, "/", query, nothing); m["x-amz-signature"] != want {
		t.Errorf("signed %q, want %q", m["x-amz-signature"], want)
	}
	return key
}

// TestAWSEnvironment: keys from the environment sign for the host and region of a broker.
func TestAWSEnvironment(t *testing.T) {
	alone(t)
	const key, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	t.Setenv("AWS_ACCESS_KEY_ID", key)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	now := time.Date(2026, 2, 3, 23, 59, 58, 0, time.FixedZone("", 7200))
	for _, token := range []string{"", "to/ken+with=signs &"} {
		t.Setenv("AWS_SESSION_TOKEN", token)
		for host, region := range map[string]string{"b-1.demo.x1.c2.kafka.eu-central-1.amazonaws.com": "eu-central-1",
			"kafka.internal.example": "cn-north-1"} {
			a, err := NewAWS(t.Context(), region, "", "streamdp")
			if err != nil {
				t.Fatal(err)
			}
			a.now = func() time.Time { return now }
			msg, err := a.Sign(t.Context(), host+":9098")
			if err != nil {
				t.Fatal(err)
			}
			if got := checkLogin(t, msg, host, region, token, map[string]string{key: secret}, now); got != key ||
				strings.Contains(string(msg), secret) {
				t.Errorf("signed by %s: %s", got, msg)
			}
		}
	}
	alone(t)
	a, err := NewAWS(t.Context(), "eu-central-1", "", "streamdp")
	if err != nil {
		t.Fatal(err)
	}
	if msg, err := a.Sign(t.Context(), "b:9098"); err == nil || msg != nil || !strings.HasPrefix(err.Error(), "AWS: ") {
		t.Errorf("without keys: %s, %v", msg, err)
	}
}

// TestAWSSecrets: no error shows the output of a credential_process, or parts of a request that an answer of AWS
// repeats.
func TestAWSSecrets(t *testing.T) {
	const secret = "wJalrXUtnFEMI"
	refused := func(t *testing.T, role string) {
		t.Helper()
		a, err := NewAWS(t.Context(), "eu-central-1", role, "streamdp")
		if err == nil {
			_, err = a.Sign(t.Context(), "b.example:9098")
		}
		if err == nil || !strings.HasPrefix(err.Error(), "AWS: ") || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	for _, out := range []string{`{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "` + secret + `"} done`,
		`{"Version": 2, "SecretAccessKey": "` + secret + `"}`} {
		alone(t)
		dir := t.TempDir()
		file, settings := filepath.Join(dir, "out"), filepath.Join(dir, "config")
		for name, text := range map[string]string{file: out, settings: "[default]\ncredential_process = cat " +
			"" + file + "\n"} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("AWS_CONFIG_FILE", settings)
		refused(t, "")
	}
	for _, code := range []string{"SignatureDoesNotMatch", "IncompleteSignature", "ValidationError"} {
		alone(t)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w,
				`<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>x-amz-security-token:%s</Message></Error></ErrorResponse>`, code, r.Header.Get("X-Amz-Security-Token"))
		}))
		defer s.Close()
		t.Setenv("AWS_ACCESS_KEY_ID", "A")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
		t.Setenv("AWS_SESSION_TOKEN", secret)
		t.Setenv("AWS_ENDPOINT_URL_STS", s.URL)
		refused(t, "arn:aws:iam::123456789012:role/kafka")
	}
}

// machine imitates a machine's metadata service and the STS of AWS.
type machine struct {
	given   atomic.Int64 // number of keys that were given out
	assumed atomic.Int64 // number of times the role was assumed
	refuse  atomic.Bool
	life    atomic.Int64 // validity of a role's keys, as a time.Duration
}

func (m *machine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	switch {
	case r.Method == "PUT" && r.URL.Path == "/latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		fmt.Fprint(w, "imds-token")
	case strings.HasPrefix(r.URL.Path, "/latest/meta-data/iam/") &&
		r.Header.Get("X-Aws-Ec2-Metadata-Token") != "imds-token":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/latest/meta-data/iam/security-credentials/":
		fmt.Fprint(w, "machine-role")
	case r.URL.Path == "/latest/meta-data/iam/security-credentials/machine-role":
		fmt.Fprintf(w,
			`{"Code": "Success", "AccessKeyId": "IMDS%d", "SecretAccessKey": "imds-secret", "Token": "imds-session", "Expiration": %q}`, m.given.Add(1), end)
	case r.Method == "POST" && r.URL.Path == "/":
		r.ParseForm()
		f := r.PostForm
		if m.refuse.Load() || f.Get("Action") != "AssumeRole" ||
			f.Get("RoleArn") != "arn:aws:iam::123456789012:role/kafka" || f.Get("RoleSessionName") != "streamdp" ||
			!strings.Contains(r.Header.Get("Authorization"), "Credential=IMDS1/") ||
			r.Header.Get("X-Amz-Security-Token") != "imds-session" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w,
				`<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>not authorized to perform sts:AssumeRole</Message></Error></ErrorResponse>`)
			return
		}
		fmt.Fprintf(w,
			`<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLE%d</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey>`+
				`<SessionToken>role-session</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
			m.assumed.Add(1), time.Now().Add(time.Duration(m.life.Load())).UTC().Format(time.RFC3339))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// TestAWSRole: keys of the machine, and keys of a role that is assumed with them, are renewed before they expire.
func TestAWSRole(t *testing.T) {
	alone(t)
	m := &machine{}
	s := httptest.NewServer(m)
	defer s.Close()
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	t.Setenv("AWS_ENDPOINT_URL_STS", s.URL)
	sign := func(a *AWS, token string) string {
		t.Helper()
		now := time.Now()
		a.now = func() time.Time { return now }
		msg, err := a.Sign(t.Context(), "b.example:9098")
		if err != nil {
			t.Fatal(err)
		}
		return checkLogin(t, msg, "b.example", "eu-central-1", token,
			map[string]string{"IMDS1": "imds-secret", "ROLE1": "role-secret", "ROLE2": "role-secret"}, now)
	}
	plain, err := NewAWS(t.Context(), "eu-central-1", "", "streamdp")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if key := sign(plain, "imds-session"); key != "IMDS1" || m.given.Load() != 1 {
			t.Errorf("signed by %s, keys requested %d times", key, m.given.Load())
		}
	}
	m.given.Store(0)
	role, err := NewAWS(t.Context(), "eu-central-1", "arn:aws:iam::123456789012:role/kafka", "streamdp")
	if err != nil {
		t.Fatal(err)
	}
	m.life.Store(int64(keysEarly - time.Second)) // keys with this life are renewed
	if key := sign(role, "role-session"); key != "ROLE1" {
		t.Errorf("signed by %s", key)
	}
	m.life.Store(int64(keysEarly + time.Minute)) // keys with this life are not
	for range 2 {
		if key := sign(role, "role-session"); key != "ROLE2" || m.assumed.Load() != 2 {
			t.Errorf("signed by %s, role assumed %d times", key, m.assumed.Load())
		}
	}
	m.refuse.Store(true)
	refused, err := NewAWS(t.Context(), "eu-central-1", "arn:aws:iam::123456789012:role/other", "streamdp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := refused.Sign(t.Context(), "b.example:9098"); err == nil ||
		err.Error() != `AWS: "AccessDenied": "not authorized to perform sts:AssumeRole"` {
		t.Errorf("refused: %v", err)
	}
}
