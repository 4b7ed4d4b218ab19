// Package shardlog is the protocol by which instances share a shard: a part of the tasks, with
// their state and their ledger, that one instance owns at a time. It keeps both in two logs that
// the instances share, and knows nothing of Kafka: a [Log] does what the protocol asks for.
//
//   - [Acquire] takes a shard: it fences the former owner, writes a record of its own, and reads
//     state and ledger past that record.
//   - [Holding.Update] makes values and ledger lines durable, all or none of them. After the first
//     error that leaves the outcome open the holding is lost for ever.
//   - [Read] reads a shard without owning it, and [Create] begins one.
//
// Values are sealed: see [Value]. docs/theory/cluster.md has the protocol in words, the formats
// and what is left when something fails; a model of the protocol is in the tests.
package shardlog
