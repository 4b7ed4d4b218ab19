FUZZTIME ?= 10s

.PHONY: build test race test-kafka bench fuzz-smoke generate check

build:
	go build -o streamdp ./cmd/streamdp

test:
	go test ./...

race:
	go test -race ./...

# Against a real Apache Kafka: see .ci/kafka/run, which exits with 77 where it
# can't get one.
test-kafka:
	.ci/kafka/run

bench:
	go test -run='^$$' -bench=. -benchmem ./...

fuzz-smoke:
	@set -e; for p in $$(go list ./...); do for f in $$(go test -list='^Fuzz' $$p | grep '^Fuzz'); do \
		go test -run='^$$' -fuzz="^$$f$$" -fuzztime=$(FUZZTIME) $$p; done; done

generate:
	go generate ./...

check:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./... && go mod tidy -diff
