package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Error is a failed call: either a broker's error code, or a failure before a broker answered.
type Error struct {
	// API is the name of the call: "fetch", "list_offsets", "metadata", "produce", "create_topics", "describe_configs",
	// "offset_commit" or "connect".
	API string
	// Code is the broker's error code, 0 if no broker answered.
	Code int16
	// Topic and Partition are the subject of the call. If the call has no subject, Topic is empty and Partition is −1.
	Topic     string
	Partition int32

	kind string // if Code is 0: one of the kinds below
	err  error
}

// These are the kinds of failures without a broker's code, as reported by Label.
const (
	kindTimeout  = "timeout"  // there was no answer in time
	kindNetwork  = "network"  // the connection was refused, reset or closed, or the host does not exist
	kindTLS      = "tls"      // the TLS handshake or the certificate failed
	kindProtocol = "protocol" // the answer was invalid
	kindEmpty    = "empty"    // the answer had no data although there must be some
	kindClosed   = "closed"   // the client was closed
	kindUsage    = "usage"    // the request was refused before it was sent
	kindToken    = "token"    // no credentials could be obtained, so no broker was asked
)

// Error returns "api topic/partition: what happened".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("kafka ")
	b.WriteString(e.API)
	if e.Topic != "" {
		b.WriteByte(' ')
		b.WriteString(e.Topic)
		if e.Partition >= 0 {
			b.WriteByte('/')
			b.WriteString(strconv.Itoa(int(e.Partition)))
		}
	}
	b.WriteString(": ")
	switch {
	case e.Code != 0:
		fmt.Fprintf(&b, "%s (error %d)", strings.ToLower(title(e.Code)), e.Code)
		if e.err != nil {
			fmt.Fprintf(&b, ": %v", e.err)
		}
	case e.err != nil:
		b.WriteString(e.err.Error())
	default:
		b.WriteString(e.kind)
	}
	return b.String()
}

// Unwrap returns the cause, if there is one in addition to the code.
func (e *Error) Unwrap() error { return e.err }

// Label returns the error as a metric label: the broker's code in decimal, or a word for a failure without a code. The
// set of labels is small and independent of data.
func (e *Error) Label() string {
	if e.Code != 0 {
		return strconv.Itoa(int(e.Code))
	}
	return e.kind
}

// Retriable reports whether the same call may succeed later without a change of the request. If so, wait and repeat it.
// Refused credentials and missing permissions are retriable, because they are repaired on the broker, and a waiting
// daemon then continues without further action by the operator.
func (e *Error) Retriable() bool {
	if e.Code == 0 {
		return e.kind != kindUsage && e.kind != kindClosed
	}
	switch kafkago.Error(e.Code) {
	case kafkago.MessageSizeTooLarge, kafkago.RecordListTooLarge,
		kafkago.InvalidTopic, kafkago.InvalidRequiredAcks, kafkago.InvalidTimestamp,
		kafkago.UnsupportedSASLMechanism, kafkago.IllegalSASLState,
		kafkago.UnsupportedVersion, kafkago.InvalidRequest,
		kafkago.InvalidPartitionNumber, kafkago.InvalidReplicationFactor,
		kafkago.InvalidReplicaAssignment, kafkago.InvalidConfiguration,
		kafkago.UnsupportedForMessageFormat, kafkago.PolicyViolation,
		kafkago.UnsupportedCompressionType, kafkago.InvalidRecord:
		return false
	}
	return true
}

// Retriable reports whether err is a failed call worth repeating.
func Retriable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Retriable()
}

// Unauthorized reports whether the broker refused the credentials or did not permit the call.
func Unauthorized(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch kafkago.Error(e.Code) {
	case kafkago.TopicAuthorizationFailed, kafkago.GroupAuthorizationFailed,
		kafkago.ClusterAuthorizationFailed, kafkago.SASLAuthenticationFailed,
		kafkago.TransactionalIDAuthorizationFailed:
		return true
	}
	return false
}

// uncredited reports whether no credentials could be obtained.
func uncredited(err error) bool {
	var none *credentialsError
	return errors.As(err, &none)
}

// GapError reports that records between the position and the start of the log are gone: retention or DeleteRecords
// deleted them before the reader read them.
type GapError struct {
	Topic          string
	Partition      int32
	LogStart, Next int64
}

// Error names the missing offsets.
func (e *GapError) Error() string {
	return fmt.Sprintf("%s/%d: offsets %d to %d are no longer in the log, which starts at %d",
		e.Topic, e.Partition, e.Next, e.LogStart-1, e.LogStart)
}

// TruncatedError reports that the log ends before the reader's position: it lost records that were read, or it is
// another log. Waiting until the log grows does not help, because new records will get the lost offsets.
type TruncatedError struct {
	Topic        string
	Partition    int32
	LogEnd, Next int64
}

// Error returns both offsets.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%s/%d: the log ends at %d, before the next offset %d: it was truncated or re-created",
		e.Topic, e.Partition, e.LogEnd, e.Next)
}

// Lost reports whether the log does not hold the requested offset: whether err is a [GapError] or a [TruncatedError].
func Lost(err error) bool {
	var gap *GapError
	var truncated *TruncatedError
	return errors.As(err, &gap) || errors.As(err, &truncated)
}

// Evidence says which observation proves that a log was replaced.
type Evidence string

// These are the possible values of ReplacedError's evidence.
const (
	// AnchorDiffers: the record at the anchor's offset has another content, or now belongs to an aborted transaction.
	AnchorDiffers Evidence = "the last record that was read now has different content"
	// AnchorVanished: the anchor's offset has no record any more, although the log has earlier and later offsets.
	AnchorVanished Evidence = "the last record that was read is missing, although the log has earlier and later offsets"
	// ClusterChanged: the brokers belong to another cluster.
	ClusterChanged Evidence = "the brokers report another cluster id"
	// EpochWentBack: the leader epoch decreased, which it never does during the life of a topic.
	EpochWentBack Evidence = "the leader epoch went back"
)

// ReplacedError reports that the log is not the one that was read before.
type ReplacedError struct {
	Topic     string
	Partition int32
	Next      int64
	Evidence  Evidence
}

// Error returns the evidence.
func (e *ReplacedError) Error() string {
	return fmt.Sprintf("%s/%d at offset %d: this is not the log that was read before: %s",
		e.Topic, e.Partition, e.Next, e.Evidence)
}

// TooLargeError reports that a single message exceeds the limit of the topic or the broker. Repeating it cannot help.
type TooLargeError struct {
	Topic     string
	Partition int32
	Index     int // index of the message in the call; earlier messages were appended
	Bytes     int // total size of its key, value and headers
	cause     *Error
}

// Error returns the size of the message, which is not private because the message was about to be published.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s/%d: a message of %d bytes exceeds the topic's max.message.bytes",
		e.Topic, e.Partition, e.Bytes)
}

// Unwrap returns the broker's error.
func (e *TooLargeError) Unwrap() error { return e.cause }

// title returns kafka-go's name of a code, such as "Not Leader For Partition".
func title(code int16) string {
	if t := kafkago.Error(code).Title(); t != "" {
		return t
	}
	return "unknown error"
}

// brokerError returns an error with a broker's error code.
func brokerError(api, topic string, partition int32, code int16) *Error {
	return &Error{API: api, Code: code, Topic: topic, Partition: partition}
}

// localError returns the error of a failure without a broker's code.
func localError(api, topic string, partition int32, kind, text string) *Error {
	return &Error{API: api, Topic: topic, Partition: partition, kind: kind, err: errors.New(text)}
}

// callError classifies an error from kafka-go. If the caller's own context has ended, it returns the context's error
// instead of an Error, because nothing failed.
func callError(ctx context.Context, api, topic string, partition int32, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	e := &Error{API: api, Topic: topic, Partition: partition}
	var (
		code    kafkago.Error
		netErr  net.Error
		opErr   *net.OpError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		none    *credentialsError
	)
	switch {
	case errors.As(err, &none): // Check this before the error that it wraps, which did not come from the broker.
		e.kind, e.err = kindToken, none
	case errors.As(err, &code):
		e.Code = int16(code)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		e.Code = int16(kafkago.UnknownTopicOrPartition)
	case errors.Is(err, protocol.ErrNoLeader):
		e.Code = int16(kafkago.LeaderNotAvailable)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &netErr) && netErr.Timeout():
		e.kind, e.err = kindTimeout, errors.New("no answer in time")
	case errors.As(err, &record), errors.As(err, &alert), errors.As(err, &cert), errors.As(err, &unknown):
		e.kind, e.err = kindTLS, err
	case errors.Is(err, errClosed):
		e.kind, e.err = kindClosed, errClosed
	case errors.As(err, &opErr) && opErr.Op == "dial":
		e.kind, e.err = kindNetwork, opErr // The outer errors only repeat this one.
	case errors.As(err, &opErr), netErr != nil, errors.Is(err, net.ErrClosed):
		e.kind, e.err = kindNetwork, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.kind, e.err = kindNetwork, errors.New("the broker closed the connection")
	case api == "fetch":
		// A decoder's message may depend on the data that it decodes, so it is dropped.
		e.kind, e.err = kindProtocol, errors.New("the answer could not be decoded")
	default:
		e.kind, e.err = kindProtocol, err
	}
	return e
}

// UnknownTopic reports whether err means that the topic or partition does not exist.
func UnknownTopic(err error) bool {
	var e *Error
	return errors.As(err, &e) && kafkago.Error(e.Code) == kafkago.UnknownTopicOrPartition
}
