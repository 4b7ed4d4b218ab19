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

// Resource is something on which a user needs rights.
type Resource struct {
	// Kind is "topic", "group" or "transactional-id".
	Kind string `json:"resource"`
	// Name is the resource's name; for transactional ids, the prefix of all of them.
	Name string `json:"name"`
	// Operations are the operations that the user needs, named as in kafka-acls: on topics Read, Write, Describe,
	// DescribeConfigs and Create; on groups Read and Describe; on transactional ids Write and Describe. Create is
	// needed only if the topic does not exist.
	Operations []string `json:"operations"`
}

// Grant returns the command that gives a principal these rights.
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

// String returns, for example, "Read, Write topic orders".
func (r Resource) String() string {
	name := r.Name
	if r.Kind == transactionalIDs {
		name += "…"
	}
	return fmt.Sprintf("%s %s %s", strings.Join(r.Operations, ", "), strings.ReplaceAll(r.Kind, "-", " "), name)
}

const transactionalIDs = "transactional-id"

// ErrSilent is the error of brokers that do not report what a user may do because they are older than 2.3.
var ErrSilent = errors.New("the brokers do not say what this user may do")

var operationNumbers = map[string]kmsg.ACLOperation{
	"Read": kmsg.ACLOperationRead, "Write": kmsg.ACLOperationWrite, "Create": kmsg.ACLOperationCreate,
	"Describe": kmsg.ACLOperationDescribe, "DescribeConfigs": kmsg.ACLOperationDescribeConfigs,
}

// Missing returns the needed rights that the user does not have. It changes nothing: if brokers do not report a right
// (KIP-430), Missing tests it with a request that has no effect.
//
// Errors: ErrSilent; the cluster cannot be reached, or refuses the credentials.
func Missing(ctx context.Context, o kafka.Options, needs []Resource) (missing []Resource, err error) {
	opts, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	// From version 6 on, the answer about a group that does not exist is an error and does not include the user's
	// rights on it.
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
			err = fmt.Errorf("cannot check rights on a %s: unknown kind of resource", r.Kind)
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

// allowed reports whether an answer's bit set of operations includes op.
func allowed(operations int32, op string) (bool, error) {
	if operations < 0 { // the smallest number means that the broker does not report operations
		return false, ErrSilent
	}
	return operations>>operationNumbers[op]&1 == 1, nil
}

func lacksTopic(ctx context.Context, client *kgo.Client, t kmsg.MetadataResponseTopic, name, op string) (bool, error) {
	code := kerr.ErrorForCode(t.ErrorCode)
	switch {
	case op == "Create" && code == nil:
		return false, nil // the topic exists
	case op == "Create":
		return lacksCreate(ctx, client, name)
	case code == kerr.TopicAuthorizationFailed && op == "DescribeConfigs":
		return lacksConfigs(ctx, client, name)
	case code == kerr.TopicAuthorizationFailed:
		return true, nil // Read and Write imply Describe
	case code != nil && code != kerr.UnknownTopicOrPartition && !kerr.IsRetriable(code):
		return false, code
	}
	ok, err := allowed(t.AuthorizedOperations, op)
	return !ok, err
}

// lacksCreate reports whether the user may not create the topic. It asks the broker, because a right on the cluster is
// also sufficient, and the operations on a topic do not include this right.
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
	// The broker refuses for another reason only after it has checked the rights.
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

// beginsGroups reports whether the cluster has no coordinator yet because nobody has asked it about a group before.
func beginsGroups(res *kmsg.DescribeGroupsResponse, err error) bool {
	if err == nil && len(res.Groups) == 1 {
		err = kerr.ErrorForCode(res.Groups[0].ErrorCode)
	}
	return errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.NotCoordinator) ||
		errors.Is(err, kerr.CoordinatorLoadInProgress)
}

// beginning is how long a new cluster may take until it has a coordinator for its first group.
const beginning = 10 * time.Second

func groupRights(ctx context.Context, client *kgo.Client, name string) (func(string) (bool, error), error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{name}, true
	var res *kmsg.DescribeGroupsResponse
	var err error
	// The first question about any group makes a cluster create its internal topic of groups, which takes a moment.
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
			return true, nil // Read implies Describe
		case code != nil && code != kerr.GroupIDNotFound:
			return false, code
		}
		ok, err := allowed(res.Groups[0].AuthorizedOperations, op)
		return !ok, err
	}, nil
}

// transactionRights tests the right to Write: it asks to end a transaction that does not exist, under an id that no
// shard has. Brokers check the right before anything else.
func transactionRights(ctx context.Context, client *kgo.Client, prefix string) (func(string) (bool, error), error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = prefix+"check", 0, 0
	res, err := req.RequestWith(ctx, client)
	refused := errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
	if err != nil && !refused {
		return nil, err
	}
	refused = refused || kerr.ErrorForCode(res.ErrorCode) == kerr.TransactionalIDAuthorizationFailed
	// Write implies Describe. A user who may only Describe cannot be distinguished from one who may do neither.
	return func(string) (bool, error) { return refused, nil }, nil
}
