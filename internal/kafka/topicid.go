package kafka

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicID distinguishes a topic from earlier and later topics of the same name (KIP-516, Kafka 2.8). The zero value
// means that the brokers have no topic ids.
type TopicID [16]byte

// IsZero reports whether there is no id.
func (t TopicID) IsZero() bool { return t == TopicID{} }

// String returns the id as 32 hexadecimal digits, or "" for the zero id.
func (t TopicID) String() string {
	if t.IsZero() {
		return ""
	}
	return hex.EncodeToString(t[:])
}

// ParseTopicID parses the result of String.
func ParseTopicID(s string) (t TopicID, err error) {
	if s == "" {
		return t, nil
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(t) || TopicID(b).IsZero() {
		return t, errors.New("topic id must be 32 hexadecimal digits, not all zero")
	}
	return TopicID(b), nil
}

// TopicID asks the cluster for the id of a topic. It is zero if the brokers have no topic ids. If the topic does not
// exist, the error is an Error with code 3, as for a reader: see UnknownTopic.
//
// It asks a broker at each call. A broker may take a moment to learn that a topic was deleted and re-created.
func (c *Client) TopicID(ctx context.Context, name string) (TopicID, error) {
	const api = "metadata"
	leave, err := c.pass(ctx, "", -1)
	if err != nil {
		return TopicID{}, err
	}
	defer leave()
	m, err := c.roundTrip(ctx, requestTimeout, &topicIDRequest{topic: name, clientID: c.transport.ClientID})
	if err != nil {
		return TopicID{}, callError(ctx, api, name, -1, err)
	}
	res, ok := m.(*topicIDResponse)
	if !ok {
		return TopicID{}, localError(api, name, -1, kindProtocol, "malformed response")
	}
	if res.code != 0 {
		return TopicID{}, brokerError(api, name, -1, res.code)
	}
	return res.id, nil
}

const (
	// idVersion is the version of metadata requests that name topics and whose answers have topic ids. kafka-go
	// supports only versions up to 8, and its pool relies on its own type, so no other type can be registered.
	idVersion = 10
	// maxMetadata is the maximum size of the answer about one topic. The answer lists all brokers, and all partitions
	// of the topic, with 40 bytes each if there are three replicas.
	maxMetadata = 64 << 20
)

// topicIDRequest is a metadata request that encodes itself and decodes its answer.
type topicIDRequest struct{ topic, clientID string }

// topicIDResponse is the part of the answer that is missing in kafka-go's type.
type topicIDResponse struct {
	code int16
	id   TopicID
}

func (*topicIDRequest) ApiKey() protocol.ApiKey                 { return protocol.Metadata }
func (*topicIDResponse) ApiKey() protocol.ApiKey                { return protocol.Metadata }
func (*topicIDRequest) Required(map[protocol.ApiKey]int16) bool { return true }
func (r *topicIDRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	versions := kmsg.NewPtrApiVersionsRequest()
	v, err := exchange(rw, r.clientID, versions)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(v.(*kmsg.ApiVersionsResponse).ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return k.ApiKey == int16(protocol.Metadata) && k.MinVersion <= idVersion && k.MaxVersion >= idVersion
	})
	if i < 0 {
		return &topicIDResponse{}, nil
	}
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(idVersion)
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &r.topic
	req.Topics = append(req.Topics, t)
	m, err := exchange(rw, r.clientID, req)
	if err != nil {
		return nil, err
	}
	topics := m.(*kmsg.MetadataResponse).Topics
	if len(topics) != 1 {
		return &topicIDResponse{code: int16(kafkago.UnknownTopicOrPartition)}, nil
	}
	return &topicIDResponse{code: topics[0].ErrorCode, id: topics[0].TopicID}, nil
}

// exchange sends a request on a connection and reads its answer.
func exchange(rw io.ReadWriter, clientID string, req kmsg.Request) (kmsg.Response, error) {
	const correlation = 1 // one request at a time
	raw := kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(nil, req, correlation)
	if _, err := rw.Write(raw); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[:]))) - 4
	if n < 0 || n > maxMetadata || binary.BigEndian.Uint32(head[4:]) != correlation {
		return nil, fmt.Errorf("malformed response of %d bytes", n)
	}
	body, err := io.ReadAll(io.LimitReader(rw, int64(n)))
	if err != nil {
		return nil, err
	}
	if len(body) < n {
		return nil, io.ErrUnexpectedEOF
	}
	res := req.ResponseKind()
	if req.IsFlexible() { // tagged fields in the header are not used
		if len(body) == 0 || body[0] != 0 {
			return nil, errors.New("malformed response header")
		}
		body = body[1:]
	}
	return res, res.ReadFrom(body)
}
