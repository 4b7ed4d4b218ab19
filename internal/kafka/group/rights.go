package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/streamdp/streamdp/internal/kafka"
)

// Resource is something that a user needs rights on.
type Resource struct {
	// Kind is "topic", "group" or "transactional-id".
	Kind string `json:"resource"`
	// Name is its name; of transactional ids, what all of them begin with.
	Name string `json:"name"`
	// Operations are those that the user needs, as kafka-acls names them: of topics Read, Write,
	// Describe, DescribeConfigs and Create; of groups Read and Describe; of transactional ids
	// Write and Describe. Create is needed where the topic does not exist.
	Operations []string `json:"operations"`
}

// Grant is the command that gives a principal the rights.
func (r Resource) Grant(broker, principal string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-acls.sh --bootstrap-server %s --add --allow-principal %s", broker, principal)
	for _, op := range r.Operations {
		b.WriteString(" --operation " + op)
	}
	fmt.Fprintf(&b, " --%s %s", r.Kind, r.Name)
	if r.Kind == transactionalIDs {
		b.WriteString(" --resource-pattern-type prefixed")
	}
	return b.String()
}

// String is "Read, Write topic orders".
func (r Resource) String() string {
	name := r.Name
	if r.Kind == transactionalIDs {
		name += "…"
	}
	return fmt.Sprintf("%s %s %s", strings.Join(r.Operations, ", "), strings.ReplaceAll(r.Kind, "-", " "), name)
}

const transactionalIDs = "transactional-id"

// ErrSilent says that the brokers do not tell what a user may do: they are older than 2.3.
var ErrSilent = errors.New("the brokers do not say what this user may do")

var operationNumbers = map[string]kmsg.ACLOperation{
	"Read": kmsg.ACLOperationRead, "Write": kmsg.ACLOperationWrite, "Create": kmsg.ACLOperationCreate,
	"Describe": kmsg.ACLOperationDescribe, "DescribeConfigs": kmsg.ACLOperationDescribeConfigs,
}

// Missing returns, of the rights that a user needs, those that the user lacks. It changes
// nothing: what brokers do not say (KIP-430) it learns from requests that have no effect.
//
// Errors: ErrSilent; that the cluster cannot be reached, or refuses the credentials.
func Missing(ctx context.Context, o kafka.Options, needs []Resource) (missing []Resource, err error) {
	opts, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	// From version 6 on the answer about a group that does not exist is an error, and does not
	// tell what the user may do with it.
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(kmsg.DescribeGroups.Int16(), 5)
	client, err := kgo.NewClient(append(opts, kgo.MaxVersions(versions))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var topics []string
	for _, r := range needs {
		if r.Kind == "topic" && !slices.Contains(topics, r.Name) {
			topics = append(topics, r.Name)
		}
	}
	seen := map[string]kmsg.MetadataResponseTopic{}
	if len(topics) > 0 {
		meta, err := describe(ctx, client, topics...)
		if err != nil {
			return nil, err
		}
		for i, name := range topics {
			seen[name] = meta.Topics[i]
		}
	}
	for _, r := range needs {
		var lacks func(string) (bool, error)
		switch r.Kind {
		case "topic":
			lacks = func(op string) (bool, error) { return lacksTopic(ctx, client, seen[r.Name], r.Name, op) }
		case "group":
			lacks, err = groupRights(ctx, client, r.Name)
		case transactionalIDs:
			lacks, err = transactionRights(ctx, client, r.Name)
		default:
			err = fmt.Errorf("rights on a %s are not known", r.Kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.Kind, r.Name, err)
		}
		gone := Resource{Kind: r.Kind, Name: r.Name}
		for _, op := range r.Operations {
			no, err := lacks(op)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", r.Kind, r.Name, err)
			}
			if no {
				gone.Operations = append(gone.Operations, op)
			}
		}
		if len(gone.Operations) > 0 {
			missing = append(missing, gone)
		}
	}
	return missing, nil
}

// allowed reports whether an operation is among those of an answer.
func allowed(operations int32, op string) (bool, error) {
	if operations < 0 { // the smallest number
		return false, ErrSilent
	}
	return operations>>operationNumbers[op]&1 == 1, nil
}

func lacksTopic(ctx context.Context, client *kgo.Client, t kmsg.MetadataResponseTopic, name, op string) (bool, error) {
	code := kerr.ErrorForCode(t.ErrorCode)
	switch {
	case op == "Create" && code == nil:
		return false, nil // nobody creates it
	case op == "Create":
		return lacksCreate(ctx, client, name)
	case code == kerr.TopicAuthorizationFailed && op == "DescribeConfigs":
		return lacksConfigs(ctx, client, name)
	case code == kerr.TopicAuthorizationFailed:
		return true, nil // whoever may Read or Write may Describe
	case code != nil && code != kerr.UnknownTopicOrPartition && !kerr.IsRetriable(code):
		return false, code
	}
	ok, err := allowed(t.AuthorizedOperations, op)
	return !ok, err
}

// lacksCreate asks whether the topic could be created. A right on the cluster will do, too, which
// is not among the operations on a topic.
func lacksCreate(ctx context.Context, client *kgo.Client, name string) (bool, error) {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, 1, -1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.ValidateOnly, req.Topics = true, append(req.Topics, t)
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return false, err
	}
	if len(res.Topics) != 1 {
		return false, errAnswer
	}
	code := kerr.ErrorForCode(res.Topics[0].ErrorCode)
	// Other refusals are those of a request that was allowed.
	return code == kerr.TopicAuthorizationFailed || code == kerr.ClusterAuthorizationFailed, nil
}

func lacksConfigs(ctx context.Context, client *kgo.Client, name string) (bool, error) {
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, name, []string{"cleanup.policy"}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = append(req.Resources, r)
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return false, err
	}
	if len(res.Resources) != 1 {
		return false, errAnswer
	}
	return kerr.ErrorForCode(res.Resources[0].ErrorCode) == kerr.TopicAuthorizationFailed, nil
}

// beginsGroups reports whether a cluster has no coordinator yet.
func beginsGroups(res *kmsg.DescribeGroupsResponse, err error) bool {
	if err == nil && len(res.Groups) == 1 {
		err = kerr.ErrorForCode(res.Groups[0].ErrorCode)
	}
	return errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.NotCoordinator) ||
		errors.Is(err, kerr.CoordinatorLoadInProgress)
}

// beginning is how long a cluster may take until it has a coordinator for its first group.
const beginning = 10 * time.Second

func groupRights(ctx context.Context, client *kgo.Client, name string) (func(string) (bool, error), error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{name}, true
	var res *kmsg.DescribeGroupsResponse
	var err error
	// The first question about any group makes a cluster begin with its groups, which takes a moment.
	for began := time.Now(); ; time.Sleep(beginning / 50) {
		res, err = req.RequestWith(ctx, client)
		if !beginsGroups(res, err) || time.Since(began) > beginning || ctx.Err() != nil {
			break
		}
	}
	var code error
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		code = kerr.GroupAuthorizationFailed
	case err != nil:
		return nil, err
	case len(res.Groups) != 1:
		return nil, errAnswer
	default:
		code = kerr.ErrorForCode(res.Groups[0].ErrorCode)
	}
	return func(op string) (bool, error) {
		switch {
		case code == kerr.GroupAuthorizationFailed:
			return true, nil // whoever may Read may Describe
		case code != nil && code != kerr.GroupIDNotFound:
			return false, code
		}
		ok, err := allowed(res.Groups[0].AuthorizedOperations, op)
		return !ok, err
	}, nil
}

// transactionRights asks for the end of a transaction that nobody has begun, under an id that is
// no shard's. Brokers look at the right to Write first.
func transactionRights(ctx context.Context, client *kgo.Client, prefix string) (func(string) (bool, error), error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = prefix+"check", 0, 0
	res, err := req.RequestWith(ctx, client)
	refused := errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
	if err != nil && !refused {
		return nil, err
	}
	refused = refused || kerr.ErrorForCode(res.ErrorCode) == kerr.TransactionalIDAuthorizationFailed
	// Whoever may Write may Describe; who may only Describe is not told from who may neither.
	return func(string) (bool, error) { return refused, nil }, nil
}
