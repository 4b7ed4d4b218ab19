// Package cluster is for instances that share tasks over Kafka. So far it holds a model of their
// protocol, in its tests, and no code of it: docs/theory/cluster.md.
package cluster
