// Package group is what instances of one group ask of Kafka besides records: who of them
// has which shards (Join), the topics that the shards are kept in (Init, Check), and what a
// shard's protocol needs to write and read (Log).
//
// Membership is not the fence between two owners of a shard: it says who is meant to own
// it. Only a transactional id, a Log's, says who may write to it. So a member keeps its shards
// while the group's coordinator is away, and a member that was cut off is stopped by the
// broker's answers, not by a clock.
package group
