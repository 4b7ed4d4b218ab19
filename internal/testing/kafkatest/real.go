package kafkatest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Real is an Apache Kafka broker that .ci/kafka/run has started for the tests.
type Real struct {
	tb    testing.TB
	Addrs []string
	// SASL is the address of the listener that asks for credentials. The user is streamdp, with password "secret". It
	// may perform the operations that Grant allows.
	SASL string
	// Mutual is the address of the listener that asks for a client certificate. The user is the common name of the
	// certificate; [Real.Certificate] makes one. It is empty if there is no such listener.
	Mutual string
	// Data is the folder of the broker's logs, one folder for each partition.
	Data string
	dir  string
}

// NewReal returns the broker that STREAMDP_KAFKA_BROKERS names. It skips the test if the variable is not set.
func NewReal(tb testing.TB) *Real {
	tb.Helper()
	addrs := os.Getenv("STREAMDP_KAFKA_BROKERS")
	if addrs == "" {
		tb.Skip("needs a real Kafka: make test-kafka")
	}
	dir := os.Getenv("STREAMDP_KAFKA_DIR")
	sasl, _ := os.ReadFile(filepath.Join(dir, "sasl"))
	mutual, _ := os.ReadFile(filepath.Join(dir, "mutual"))
	return &Real{tb: tb, Addrs: strings.Split(addrs, ","), SASL: strings.TrimSpace(string(sasl)),
		Mutual: strings.TrimSpace(string(mutual)), Data: filepath.Join(dir, "data"), dir: dir}
}

// Authority returns the file with the certificate of the authority that issued the broker's certificate.
func (r *Real) Authority() string { return filepath.Join(r.dir, "ca.pem") }

// Certificate makes a certificate of user streamdp that expires after life.
func (r *Real) Certificate(life time.Duration) *Certificate {
	r.tb.Helper()
	cert, err := os.ReadFile(r.Authority())
	if err != nil {
		r.tb.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(r.dir, "ca.key"))
	if err != nil {
		r.tb.Fatal(err)
	}
	return Issue(r.tb, cert, key, "streamdp", life)
}

// Second starts another broker in the cluster, with node id 2. It stops when the test ends.
func (r *Real) Second() *Real {
	r.tb.Helper()
	if os.Getenv("STREAMDP_KAFKA_CONTROL") == "" {
		r.tb.Skip("cannot add a broker to this cluster: make test-kafka starts a cluster that permits it")
	}
	s := &Real{tb: r.tb, dir: filepath.Join(r.dir, "second")}
	s.Data = filepath.Join(s.dir, "data")
	if _, err := os.Stat(s.dir); err != nil {
		r.control("join", s.dir)
	}
	r.tb.Cleanup(func() { s.control("stop") })
	s.Start()
	addr, err := os.ReadFile(filepath.Join(s.dir, "address"))
	if err != nil {
		r.tb.Fatal(err)
	}
	s.Addrs = []string{strings.TrimSpace(string(addr))}
	return s
}

// Kill kills the broker as a crash would. The broker is started again when the test ends, even if the test fails.
func (r *Real) Kill() {
	r.tb.Helper()
	if os.Getenv("STREAMDP_KAFKA_CONTROL") == "" {
		r.tb.Skip("cannot kill this broker: make test-kafka starts a broker that the test may kill")
	}
	r.control("kill")
	r.tb.Cleanup(func() {
		if r.tb.Failed() {
			r.control("kill")
			r.control("start")
		}
	})
}

// Start starts the killed broker with its data, and returns when it serves requests.
func (r *Real) Start() { r.tb.Helper(); r.control("start") }

func (r *Real) control(what string, args ...string) {
	r.tb.Helper()
	if out, err := exec.Command(os.Getenv("STREAMDP_KAFKA_CONTROL"),
		append([]string{what, r.dir}, args...)...).CombinedOutput(); err != nil {
		r.tb.Fatalf("%s the broker: %v\n%s", what, err, out)
	}
}

// Grant allows user streamdp operations on a topic or group.
func (r *Real) Grant(typ kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) {
	r.tb.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, op := range ops {
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = typ, name, kmsg.ACLResourcePatternTypeLiteral
		a.Principal, a.Host, a.Operation, a.PermissionType = "User:streamdp", "*", op, kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, a)
	}
	res := request(r.tb, r.Addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.CreateACLsResponse, error) {
		return req.RequestWith(ctx, c)
	})
	for _, x := range res.Results {
		check(r.tb, x.ErrorCode)
	}
}

// Enrol creates SCRAM credentials for user streamdp.
func (r *Real) Enrol() {
	r.tb.Helper()
	for mechanism, h := range map[int8]func() hash.Hash{1: sha256.New, 2: sha512.New} {
		u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		u.Name, u.Mechanism, u.Iterations, u.Salt = "streamdp", mechanism, 4096, []byte("salt")
		var err error
		if u.SaltedPassword, err = pbkdf2.Key(h, "secret", u.Salt, int(u.Iterations), h().Size()); err != nil {
			r.tb.Fatal(err)
		}
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = append(req.Upsertions, u)
		res := request(r.tb, r.Addrs,
			func(ctx context.Context, c *kgo.Client) (*kmsg.AlterUserSCRAMCredentialsResponse, error) {
				return req.RequestWith(ctx, c)
			})
		check(r.tb, res.Results[0].ErrorCode)
	}
}

// Topic creates a topic of one partition under a name that nothing else uses. Retention deletes no records, however old
// their timestamps are, unless config changes that.
func Topic(tb testing.TB, addrs []string, config map[string]string) string {
	tb.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, tb.Name())
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	all := map[string]string{"retention.ms": "-1"}
	maps.Copy(all, config)
	CreateTopic(tb, addrs, name, all)
	return name
}

// Spread creates a topic like [Topic], with one partition on each of these brokers.
func Spread(tb testing.TB, addrs []string, policy string, nodes ...int32) string {
	tb.Helper()
	name := fmt.Sprintf("spread-%d", time.Now().UnixNano())
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
	for p, node := range nodes {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(p), []int32{node}
		t.ReplicaAssignment = append(t.ReplicaAssignment, a)
	}
	create(tb, addrs, t, map[string]string{"retention.ms": "-1", "cleanup.policy": policy})
	return name
}
