// Package config reads the configuration file of the daemon: TOML, strictly.
//
// An unknown key, a key in upper case, a number that is not finite, a duration
// without its unit, a wrong word are faults, and so is a key or value whose
// behaviour this version does not have: nothing is read and ignored. All faults
// of a file are reported at once, each with its line. What the keys are is in
// docs/config.md, which is made from the same table as the reader.
//
// Strings may hold ${NAME}, which stands for an environment variable. Secrets
// are files; their contents are never part of the configuration, and no message
// shows them.
//
// The part of a stream's table that its guarantee depends on has a canonical
// form, Stream.Canonical, and a digest, to which noise is bound.
package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"

	"streamdp/adam"
	"streamdp/dp"
	"streamdp/moments"
	"streamdp/sgd"
	"streamdp/sketch"
)

//go:generate go test -run ^TestReference$ -update

// Config is a configuration file that has no fault. Defaults are filled in.
type Config struct {
	Kafka Kafka `toml:"kafka"`
	State State `toml:"state"`
	HTTP  HTTP  `toml:"http"`
	Log   Log   `toml:"log"`
	// Streams are the tables [stream.NAME], by name. At least one.
	Streams []*Stream `toml:"-"`
}

// Kafka is the table [kafka]: the cluster.
type Kafka struct {
	// Brokers are the addresses from which the cluster is found, each
	// host:port, none twice. Required.
	Brokers []string `toml:"brokers"`
	// ClientID is the name under which brokers know this client. Default
	// "streamdp".
	ClientID string `toml:"client_id"`
	// TLS is the table [kafka.tls]. Nil: none.
	TLS *TLS `toml:"tls"`
	// SASL is the table [kafka.sasl]. Nil: none.
	SASL *SASL `toml:"sasl"`
}

// TLS is the table [kafka.tls]: encryption towards the brokers. LoadTLS reads
// its files.
type TLS struct {
	// CAFile holds the authorities to trust instead of the system's.
	CAFile string `toml:"ca_file"`
	// CertFile and KeyFile are this client's certificate. Both or none.
	CertFile string `toml:"cert_file"`
	KeyFile  string `toml:"key_file"`
}

// SASL is the table [kafka.sasl]: who this client is to the brokers.
type SASL struct {
	// Mechanism is "plain", "scram-sha-256" or "scram-sha-512". Required.
	Mechanism string `toml:"mechanism"`
	// Username is required.
	Username string `toml:"username"`
	// PasswordFile is the file of the password. Required; LoadPassword reads
	// it.
	PasswordFile string `toml:"password_file"`
}

// State is the table [state]: what must survive a restart.
type State struct {
	// Dir is the directory of checkpoints, manifests and the ledger. Required.
	Dir string `toml:"dir"`
	// KeyFile is the file of the master key. Required; LoadKey reads it.
	KeyFile string `toml:"key_file"`
	// KeyGroupReadable accepts a key file that its group may read. Default
	// false.
	KeyGroupReadable bool `toml:"key_group_readable"`
	// CommitInterval is the period of durable commits, at least 10 ms. Default
	// 200 ms. 0 commits at every step; then all brokers are loopback addresses.
	CommitInterval time.Duration `toml:"commit_interval"`
	// EpochSecretRetention is how long the secret of a closed epoch is kept.
	// Default 0.
	EpochSecretRetention time.Duration `toml:"epoch_secret_retention"`
}

// HTTP is the table [http]: metrics, status and health.
type HTTP struct {
	// Listen is the address to listen on. Default "127.0.0.1:9464".
	Listen string `toml:"listen"`
	// Exposure is "operator" (the default) or "public", which leaves out
	// metrics that are exact functions of records.
	Exposure string `toml:"exposure"`
}

// Log is the table [log]: messages on standard error.
type Log struct {
	// Level is "debug", "info" (the default), "warn" or "error".
	Level string `toml:"level"`
	// Format is "json" (the default) or "text".
	Format string `toml:"format"`
}

// Stream is a table [stream.NAME]: one topic, its partitions, one mechanism.
type Stream struct {
	// Name is 1 to 63 of a-z, 0-9, _ and -.
	Name   string `toml:"-"`
	Input  Input  `toml:"input"`
	Output Output `toml:"output"`
	// Centre is subtracted from each column before it is divided by Scale.
	// One number per column. Default 0.
	Centre []float64 `toml:"centre"`
	// Scale is positive, one number per column. Default 1.
	Scale []float64 `toml:"scale"`
	// Step is the number of offsets of one step, at least 1. Required for
	// moments.
	Step uint64 `toml:"step"`
	// Horizon is the number of steps of an epoch. Default 0: no end.
	Horizon uint64 `toml:"horizon"`
	// OnHorizon is what comes after the last step: "halt" (the default),
	// "rollover" or "continue". Only with a horizon.
	OnHorizon string `toml:"on_horizon"`
	// OnGap is what happens when records were deleted before they were read:
	// "halt" (the default) or "null".
	OnGap      string     `toml:"on_gap"`
	DeadLetter DeadLetter `toml:"dead_letter"`
	// LatticeBits is how much finer than clip norm and noise the lattice is,
	// 24 to 30. Default 24.
	LatticeBits int     `toml:"lattice_bits"`
	Privacy     Privacy `toml:"privacy"`

	// Moments, SGD, Refit and Adam are the mechanisms, with what the stream says of
	// columns, steps, horizon, centre and scale filled in. Exactly one is not nil.
	Moments *moments.Config `toml:"moments"`
	SGD     *sgd.Config     `toml:"sgd"`
	Refit   *sketch.Config  `toml:"refit"`
	// Adam's Initial is not read.
	Adam *adam.Config `toml:"adam"`
}

// Input is the table [stream.NAME.input]: where records come from.
type Input struct {
	// Topic is the topic. Required.
	Topic string `toml:"topic"`
	// Partitions are the partitions, ascending, at least one. Default [0].
	Partitions []int `toml:"partition"`
	// Start is where the first epoch begins. Default Earliest.
	Start Start `toml:"start"`
	// Codec is the form of a record's value: "json" (the default),
	// "json-array", "csv", "float64" or "float32".
	Codec string `toml:"codec"`
	// Columns are the numbers of a row, in order: for json names or dotted
	// paths, for csv positions from "1", elsewhere labels. Required.
	Columns []string `toml:"columns"`
	// AllowCompacted accepts a topic that Kafka compacts. Default false.
	AllowCompacted bool `toml:"allow_compacted"`
}

// Output is the table [stream.NAME.output]: where releases go.
type Output struct {
	// Topic is the topic, no other stream's and no input. Required.
	Topic string `toml:"topic"`
	// Partition is the partition of all releases. Default 0.
	Partition int `toml:"partition"`
	// Create makes the topic where it is missing. Default true.
	Create bool `toml:"create"`
	// Values are the names of the values to publish. Empty, the default: all
	// that the mechanism has.
	Values []string `toml:"values"`
	// Encoding of the numbers is "json" (the default) or "base64".
	Encoding string `toml:"encoding"`
}

// DeadLetter is the table [stream.NAME.dead_letter]: invalid records.
type DeadLetter struct {
	// Mode is "off".
	Mode string `toml:"mode"`
}

// Privacy is the table [stream.NAME.privacy]: the guarantee, per record.
type Privacy struct {
	// Epsilon is positive. Required.
	Epsilon float64 `toml:"epsilon"`
	// Delta is in (0, 1). Required.
	Delta float64 `toml:"delta"`
	// Adjacency is what neighbouring logs differ in. Required.
	Adjacency dp.Adjacency `toml:"adjacency"`
	// LimitEpsilon is at least Epsilon: what no record of the input partition
	// ever exceeds, over all epochs and streams. Required.
	LimitEpsilon float64 `toml:"limit_epsilon"`
	// LimitDelta is at least Delta. Default Delta.
	LimitDelta float64 `toml:"limit_delta"`
}

// Start is the position where a stream's first epoch begins: an offset, or
// Earliest or Latest.
type Start int64

const (
	// Latest is the last stable offset of the log.
	Latest Start = -1
	// Earliest is the start of the log.
	Earliest Start = -2
)

// String returns "earliest", "latest" or the offset.
func (s Start) String() string {
	switch s {
	case Earliest:
		return "earliest"
	case Latest:
		return "latest"
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText writes what UnmarshalText reads.
func (s Start) MarshalText() ([]byte, error) {
	if s < Earliest {
		return nil, fmt.Errorf("start is %d, must be an offset", int64(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads "earliest", "latest" or the digits of an offset.
func (s *Start) UnmarshalText(text []byte) error {
	switch string(text) {
	case "earliest":
		*s = Earliest
	case "latest":
		*s = Latest
	default:
		n, err := strconv.ParseUint(string(text), 10, 63)
		if err != nil {
			return fmt.Errorf("start is %q, must be %s", text, wants[start])
		}
		*s = Start(n)
	}
	return nil
}

// Load reads the configuration file at path. Whatever is wrong in it comes as
// Faults; another error means that the file could not be read.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a configuration from memory. name stands for the file in
// messages.
func Parse(name string, data []byte) (*Config, error) {
	d := &document{name: name, masked: map[string]string{}, bad: map[string]bool{}}
	c := &Config{}
	if d.parse(data); len(d.faults) == 0 {
		d.readTable(root(), nil, d.tree, reflect.ValueOf(c).Elem())
		c.Streams = d.streams
		d.validate(c)
	}
	if len(d.faults) > 0 {
		slices.SortStableFunc(d.faults, func(a, b *Fault) int { return cmp.Compare(a.Line, b.Line) })
		// Equal elements of a list in one line have equal faults.
		return nil, slices.CompactFunc(d.faults, func(a, b *Fault) bool { return a.Error() == b.Error() })
	}
	return c, nil
}

// Stream returns the named stream, nil where there is none.
func (c *Config) Stream(name string) *Stream {
	for _, s := range c.Streams {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Mechanism returns the name of the stream's mechanism table.
func (s *Stream) Mechanism() string {
	switch {
	case s.Moments != nil:
		return "moments"
	case s.SGD != nil:
		return "sgd"
	case s.Refit != nil:
		return "refit"
	case s.Adam != nil:
		return "adam"
	}
	return ""
}

// estimator is what mechanisms' configurations have in common.
type estimator interface {
	Defaults()
	Validate() error
	// LastStep returns the step after which an epoch ends, 0 for none.
	LastStep() uint64
	// Values returns the names of the values that a release may hold.
	Values() []string
}

// mechanism returns the configuration of the stream's mechanism, nil where there
// is none.
func (s *Stream) mechanism() estimator {
	switch {
	case s.Moments != nil:
		return s.Moments
	case s.SGD != nil:
		return s.SGD
	case s.Refit != nil:
		return s.Refit
	case s.Adam != nil:
		return s.Adam
	}
	return nil
}

// LastStep returns the step after which an epoch ends, 0 for none.
func (s *Stream) LastStep() uint64 {
	if m := s.mechanism(); m != nil {
		return m.LastStep()
	}
	return 0
}

// Gradients reports whether records are gradients, which have no columns.
func (s *Stream) Gradients() bool { return s.Mechanism() == "adam" && s.Adam.Mode == "gradients" }

// Params returns the guarantee in the form that estimators take.
func (s *Stream) Params() dp.Params {
	return dp.Params{
		Epsilon:     s.Privacy.Epsilon,
		Delta:       s.Privacy.Delta,
		Adjacency:   s.Privacy.Adjacency,
		LatticeBits: s.LatticeBits,
	}
}
