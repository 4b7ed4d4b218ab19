// Package cluster is what instances of one group ask of Kafka besides records: who of them
// has which shards (Join), and the topics that the shards are kept in (Init, Check).
//
// The fence between two owners of a shard is not here. Membership says who is meant to own
// a shard; only a transactional id says who may write to it. So a member keeps its shards
// while the group's coordinator is away, and a member that was cut off is stopped by the
// broker's answers, not by a clock.
package cluster
