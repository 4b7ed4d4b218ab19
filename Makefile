# Of each fuzz target. A number of inputs: by the clock, go test may end with "context
# deadline exceeded" where nothing is wrong (golang/go#75804, until Go 1.27).
FUZZTIME ?= 20000x

.PHONY: build test race golden golden-arm64 test-kafka bench bench-smoke fuzz-smoke generate reproduction simulations check

build:
	go build -o streamdp ./cmd/streamdp

test:
	go test ./...

# The packages that share memory between goroutines; of sketch, whose tests are statistics
# mostly, those that run every solver, on any number of processors.
race:
	go test -race -timeout=20m ./adam ./cmd/... ./config ./dp ./internal/clipgrad ./internal/kafka ./internal/newton ./stream
	go test -race -run='Golden|Processors|Extremes' ./sketch

# The same bits on every machine: noise, states and releases against the files
# and hashes that the tests hold.
golden:
	GOAMD64=v1 go test -count=1 -run=Golden ./adam ./dp ./internal/eigen ./matfact ./moments ./sgd ./sketch ./internal/newton ./stream
	GOAMD64=v3 go test -count=1 -run=Golden ./adam ./dp ./internal/eigen ./matfact ./moments ./sgd ./sketch ./internal/newton ./stream

# Needs qemu-aarch64 (Debian: qemu-user) or an arm64 machine.
golden-arm64:
	GOARCH=arm64 CGO_ENABLED=0 go test -count=1 -run=Golden -exec="$${QEMU:-qemu-aarch64}" ./adam ./dp ./internal/eigen ./matfact ./moments ./sgd ./sketch ./internal/newton ./stream

# Against a real Apache Kafka: see .ci/kafka/run, which exits with 77 where it
# can't get one.
test-kafka:
	.ci/kafka/run

bench:
	go test -run='^$$' -bench=. -benchmem ./...

# Every benchmark once: that it runs, not how fast.
bench-smoke:
	go test -run='^$$' -bench=. -benchtime=1x ./...

fuzz-smoke:
	@set -e; for p in $$(go list ./...); do for f in $$(go test -list='^Fuzz' $$p | grep '^Fuzz'); do \
		go test -run='^$$' -fuzz="^$$f$$" -fuzztime=$(FUZZTIME) $$p; done; done

generate:
	go generate ./...

# The papers' figures, computed again: docs/reproduction.md and its plots.
reproduction:
	go run ./internal/reproduction

# What it shows that takes minutes: five on one core. STREAMDP_DATA names the data sets.
simulations:
	go run ./internal/reproduction -simulate refits
	GOMAXPROCS=1 go run ./internal/reproduction -simulate fastmix

check:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./... && go mod tidy -diff
