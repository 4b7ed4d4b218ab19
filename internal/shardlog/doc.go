// Package shardlog is the protocol by which instances share a shard. A shard is a part of the tasks, with their state
// and their ledger; one instance at a time owns it. The package keeps state and ledger in two logs that the instances
// share. It does not depend on Kafka: a [Log] provides what the protocol needs.
//
//   - [Acquire] takes over a shard: it fences the former owner, writes a record of its own, and reads
//     state and ledger past that record.
//   - [Holding.Update] makes values and ledger lines durable, either all or none of them. After the
//     first error that leaves the outcome unknown, the holding is lost permanently.
//   - [Read] reads a shard without owning it, and [Create] begins one.
//
// Values are sealed: see [Value]. docs/theory/cluster.md describes the protocol, the formats and the effects of
// failures. The tests have a model of the protocol.
package shardlog
