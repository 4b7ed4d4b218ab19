// Package group uses Kafka's coordination for the instances of one group: which instance has which shards (Join), the
// topics that hold the shards (Init, Check), and the transactional log through which a shard is read and written (Log).
//
// Membership says which instance should own a shard, but does not enforce it. Only the transactional id of a shard's
// Log decides who may write to the shard. So a member keeps its shards while the group's coordinator does not answer.
// An instance that was cut off stops when brokers refuse its writes, not after some time.
package group
