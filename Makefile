# Inputs of each fuzz target; see .ci/fuzz.
FUZZROUND ?= 10000
# What a nightly run does.
FUZZMINUTES ?= 10
KILLS ?= 10000
BROKER_KILLS ?= 20
CLUSTER_ROUNDS ?= 300
SOAK ?= 30m
# Of each benchmark on Apache Kafka.
ROUNDS ?= 3
CROSS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64

.PHONY: build test race golden golden-arm64 test-kafka test-registry bench bench-kafka flame bench-guard bench-all bench-smoke fuzz-smoke generate reproduction simulations check \
	kills nightly nightly-fuzz nightly-kills nightly-kafka nightly-cluster nightly-faults nightly-reproduction soak tasks release cross

build:
	go build -o streamdp ./cmd/streamdp

# For every system that it is built for; windows is built and not tested.
cross:
	for target in $(CROSS); do GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0 go build -o /dev/null ./cmd/streamdp || exit 1; done

test:
	go test ./...

# The packages that share memory between goroutines, without tests that compute and share
# nothing; of refit, whose tests are statistics mostly, those that run every solver, on any
# number of processors; of the protocol of instances, all but the explorers.
race:
	go test -race -timeout=40m -skip='^Test(Fit|Plan|Audit|Bounds|Normal|RefitCommands)' ./adam ./cmd/... ./config ./dp ./internal/clipgrad ./internal/client ./internal/demo ./internal/kafka ./internal/newton ./stream/...
	go test -race -run='Golden|Processors|Extremes' ./refit
	go test -race -skip='^Test(Model|Faults)' ./internal/shardlog ./internal/kafka/group

# The same bits on every machine: noise, states and releases against the files
# and hashes that the tests hold.
golden:
	GOAMD64=v1 go test -count=1 -run=Golden ./adam ./dp ./internal/column ./internal/eigen ./matfact ./moments ./sgd ./refit ./internal/newton ./stream/core ./stream/ledger ./stream/state ./stream/task
	GOAMD64=v3 go test -count=1 -run=Golden ./adam ./dp ./internal/column ./internal/eigen ./matfact ./moments ./sgd ./refit ./internal/newton ./stream/core ./stream/ledger ./stream/state ./stream/task

# Needs qemu-aarch64 (Debian: qemu-user) or an arm64 machine.
golden-arm64:
	GOARCH=arm64 CGO_ENABLED=0 go test -count=1 -run=Golden -exec="$${QEMU:-qemu-aarch64}" ./adam ./dp ./internal/column ./internal/eigen ./matfact ./moments ./sgd ./refit ./internal/newton ./stream/core ./stream/ledger ./stream/state ./stream/task

# Against a real Apache Kafka: see .ci/kafka/run, which exits with 77 where it
# can't get one.
test-kafka:
	.ci/kafka/run
	.ci/kafka/three

# Records of ordinary producers, with a real schema registry.
test-registry:
	.ci/registry/run

# Measures what docs/performance.md says, in some ten minutes, and writes that page. ONLY=IHM
# measures only the benchmarks that match.
bench:
	go run ./internal/performance -only '$(ONLY)'

# Its rows that need Apache Kafka, in some five minutes; see .ci/kafka/run.
bench-kafka:
	mkdir -p .cache
	GOAMD64=v1 .ci/kafka/run go test -run='^$$' -bench='^BenchmarkReal' -benchtime=$(ROUNDS)x -count=1 -p=1 -timeout=20m ./internal/kafka ./stream >.cache/bench-kafka.txt || { cat .cache/bench-kafka.txt; exit 1; }
	@grep '^Benchmark' .cache/bench-kafka.txt
	go run ./internal/performance -from .cache/bench-kafka.txt

# The processor time of the daemon at full speed, as a flame graph: docs/performance/daemon.svg.
flame:
	mkdir -p .cache
	rm -f .cache/daemon.pprof.*
	STREAMDP_PROFILE=$(CURDIR)/.cache/daemon.pprof .ci/kafka/run go test -run='^$$' -bench='^BenchmarkRealDaemon$$/^packed' -benchtime=5x -count=1 ./stream
	go run ./internal/performance -flame docs/performance/daemon.svg -title 'The daemon at full speed: packed records of 16 columns, moments, step 1000, Apache Kafka' .cache/daemon.pprof.*

# Five kernels' instructions, and the daemon's processor time beside a bare reader's,
# against internal/performance/guard.json. Ends with 2 where .ci/guard ends with 77.
bench-guard:
	.ci/guard

# Every benchmark there is.
bench-all:
	go test -run='^$$' -bench=. -benchmem ./...

# Every benchmark once: that it runs, not how fast.
bench-smoke:
	go test -run='^$$' -bench=. -benchtime=1x ./...

fuzz-smoke:
	FUZZROUND=$(FUZZROUND) .ci/fuzz 0

# What takes hours: every fuzz target for ten minutes, ten thousand kills, twenty kills
# of a real broker, three hundred faults of instances and brokers, half an hour at full speed.
nightly: nightly-fuzz nightly-kills nightly-kafka nightly-cluster nightly-faults nightly-reproduction soak

# A thousand tasks in one process: memory, start, idle time, a release a second.
tasks:
	STREAMDP_TASKS=1000 go test -count=1 -timeout=20m -v -run='^TestThousandTasks$$' ./stream

nightly-fuzz:
	.ci/fuzz $(FUZZMINUTES)

# What CI has time for of nightly-kills.
kills:
	STREAMDP_KILLS=250 go test -count=1 -timeout=20m -v -run='^TestKillsOf' ./stream

nightly-kills:
	STREAMDP_KILLS=$(KILLS) go test -count=1 -timeout=10h -v -run='^TestKillsOf' ./stream

nightly-kafka:
	STREAMDP_BROKER_KILLS=$(BROKER_KILLS) .ci/kafka/run go test -count=1 -timeout=1h -v -run='^TestRealKafka(Kills|Merged)$$' ./stream

# Two faults in one run of the protocol of instances, and two moves: millions of runs.
nightly-faults:
	STREAMDP_NIGHT=1 go test -count=1 -timeout=10h -v -run='^TestFaults$$' ./internal/shardlog

# What reproduction/RESULTS.md keeps of simulations, simulated again.
nightly-reproduction:
	.ci/slow -C reproduction .

# Three instances on three brokers, killed and stopped; some ten seconds a fault.
nightly-cluster:
	STREAMDP_CLUSTER_ROUNDS=$(CLUSTER_ROUNDS) .ci/kafka/three go test -count=1 -timeout=10h -v -run='^TestRealKafkaCluster(Merged)?$$' ./internal/checks/chaos

# With the race detector; SOAK=3m for a shorter one.
soak:
	STREAMDP_SOAK=$(SOAK) go test -race -count=1 -timeout=3h -v -run='^TestSoak$$' ./stream

generate:
	go generate ./...

# Archives for every system, Debian packages, bills of materials and checksums, in dist/.
release:
	deploy/release $(VERSION)

# The papers' figures, computed again: reproduction/RESULTS.md and its plots.
reproduction:
	cd reproduction && go run .

# What it shows that takes minutes: five on one core. STREAMDP_DATA names the data sets.
simulations:
	cd reproduction && go run . -simulate refits
	cd reproduction && go run . -simulate intercepts
	cd reproduction && go run . -simulate coverage
	cd reproduction && GOMAXPROCS=1 go run . -simulate bounds
	cd reproduction && GOMAXPROCS=1 go run . -simulate fastmix

check:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./... && go mod tidy -diff
	cd reproduction && go vet ./... && go mod tidy -diff
