// Package chaos runs several instances of the daemon on three brokers of Apache Kafka, kills and
// stops instances and brokers, and judges what came out by the output topics and the ledgers
// alone. All of it is tests; .ci/kafka/three runs a short round, make nightly-cluster a long one.
package chaos
