// Package chaos runs several instances of the daemon on three brokers of Apache Kafka, kills and stops instances and
// brokers, and judges the result by the output topics and the ledgers alone. It contains tests only: .ci/kafka/three
// runs a short round, make nightly-cluster a long one.
package chaos
