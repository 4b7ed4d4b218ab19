package main

import (
	"fmt"
	"strings"
)

// bench is a benchmark that runs count times, each time with -benchtime=time.
type bench struct {
	pkg, bench, time string
	count            int
}

// runs are the benchmarks of make bench. They take about ten minutes.
var runs = []bench{
	{"internal/kafka", "^BenchmarkReader$", "3x", 1},
	{"stream", "^BenchmarkDaemon$", "2x", 1},
	{"stream/task", "^BenchmarkFlat$", "1x", 1},
	{"stream/input", "^BenchmarkMerge$", "3x", 3},
	{"stream/ledger", "^BenchmarkLedger$", "300x", 3},
	{"stream", "^BenchmarkCommit$", "300x", 3},
	{"stream", "^BenchmarkDaemonUsers$", "6x", 1},
	{"stream/task", "^BenchmarkUsers$", "300x", 3},
	{"internal/persons", "^BenchmarkPersons$/^take$", "3000x", 1},
	{"internal/persons", "^BenchmarkPersons$/^start$", "3x", 1},
	{"stream/task", "^BenchmarkCapacity$", "30x", 1},
	{"stream/task", "^BenchmarkFootprint$", "1x", 1},
	{"stream/core", "^BenchmarkEncode$", "0.2s", 1},
	{"stream/codec", "^BenchmarkJSONRatio$", "0.3s", 3},
	{"internal/schema", "^BenchmarkSchema$", "0.3s", 3},
	{"moments", "^BenchmarkAdd$", "0.3s", 5},
	{"dp", "^BenchmarkRow$", "0.3s", 5},
	{"dp", "^BenchmarkStep$", "0.3s", 5},
	{"matfact", "^BenchmarkNoise$/^(identity|blt4)$/^D=1000", "0.3s", 5},
	{"matfact", "^BenchmarkCores$", "0.5s", 3},
	{"refit", "^BenchmarkIHM$/^(normal|gonum)$", "3x", 2},
	{"refit", "^BenchmarkIHM$/^dense$", "1x", 1},
	{"internal/gram", "^BenchmarkSum$/^131072x90$", "4x", 1},
	{"internal/clipgrad", "^BenchmarkSum$", "0.3s", 3},
	{"refit", "^BenchmarkTransform$/^524288x32$", "4x", 3},
	{"sgd", "^BenchmarkNewtonAdd$", "0.3s", 3},
	{"adam", "^BenchmarkAdd$", "0.3s", 3},
}

// row is a row of a table: a path of the program, its rival, and the goal.
type row struct {
	path, rival string
	bench       string // PACKAGE.BENCHMARK
	unit        string // the metric
	inverse     bool   // the metric is a ratio of times, but the table shows the ratio of speeds
	speed       bool   // the metric is a ratio of speeds
	scale       float64
	goal        string // "≤ 1.2", "≥ 2", or "" for none
	suffix      string
	why         string // template of the reason why the goal is not met
}

// value returns the row's figure as text, and in met whether it reaches the goal: "yes", "no", or "" if there is no
// goal or no figure.
func (r row) value(kept *results) (text, met string) {
	got, ok := kept.Benchmarks[r.bench]
	if !ok { // if a benchmark has no sub-benchmarks, it measures packed records
		got, ok = kept.Benchmarks[strings.TrimSuffix(r.bench, "/packed")]
	}
	x, known := got.Figures[r.unit]
	if !ok || !known {
		return "not measured", ""
	}
	if r.inverse {
		x = 1 / x
	}
	if r.scale != 0 {
		x *= r.scale
	}
	text = number(x) + r.suffix
	var limit float64
	var sign string
	if _, err := fmt.Sscanf(r.goal, "%s %g", &sign, &limit); err != nil {
		return text, ""
	}
	met = "no"
	if sign == "≤" && x <= limit || sign == "≥" && x >= limit {
		met = "yes"
	}
	return text, met
}

// better returns the direction in which the row's figures improve.
func (r row) better() string {
	if r.inverse || r.speed {
		return "higher"
	}
	return "lower"
}

// number formats x with two or three digits.
func number(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x < 0.1:
		return fmt.Sprintf("%.2g", x)
	}
	return fmt.Sprintf("%.2f", x)
}

const (
	plainDraws = "normal floats of `math/rand/v2` on ChaCha8, as many draws"
	rankOne    = "plain float64 rank-1 update"
)

// These texts say why a row does not meet its goal.
const (
	readerWhy = "Broker and reader share the two cores. The reader itself takes {{figure " +
		"\"internal/kafka.BenchmarkReader\" \"cpu-ns/record\" 1}} ns of processor time per record, the rival " +
		"{{figure \"internal/kafka.BenchmarkReader\" \"cpu-ns/record-bare\" 1}}: the rest of the time is the " +
		"broker's, and equal for both."
	realReaderWhy = "Broker and reader share the two cores. The reader itself takes {{figure " +
		"\"internal/kafka.BenchmarkRealReader\" \"cpu-ns/record\" 1}} ns of processor time per record, the rival " +
		"{{figure \"internal/kafka.BenchmarkRealReader\" \"cpu-ns/record-bare\" 1}}: the rest of the time is the " +
		"broker's, and equal for both."
	packedWhy = "A record costs the daemon {{figure \"stream.BenchmarkRealDaemon/packed\" \"cpu-ns/record\" 1}} " +
		"ns of processor time and the broker {{figure \"stream.BenchmarkRealDaemon/packed\" \"cpu-ns/record-broker\" " +
		"1}}, and both run on the same two cores. If these did nothing else, the daemon would handle {{product " +
		"\"stream.BenchmarkRealDaemon/packed\" \"most-ratio\" \"Mrecords/s-kafka-go\"}} million records a second: " +
		"two cores divided by the sum of both times. kafka-go's bare fetch reached {{figure " +
		"\"stream.BenchmarkRealDaemon/packed\" \"Mrecords/s-kafka-go\" 1}} million, franz-go's {{figure " +
		"\"stream.BenchmarkRealDaemon/packed\" \"Mrecords/s-franz-go\" 1}}. Then the ratio to kafka-go would be " +
		"{{figure \"stream.BenchmarkRealDaemon/packed\" \"most-ratio\" 1}}, and to franz-go {{figure " +
		"\"stream.BenchmarkRealDaemon/packed\" \"most-ratio-franz\" 1}}: this machine does not allow twice the rate " +
		"of kafka-go. The measured ratios are smaller, because daemon and broker also wait for each other."
	jsonWhy = "A record costs the daemon {{figure \"stream.BenchmarkRealDaemon/json\" \"cpu-ns/record\" 1}} ns " +
		"of processor time, kafka-go's bare fetch {{figure \"stream.BenchmarkRealDaemon/json\" " +
		"\"cpu-ns/record-kafka-go\" 1}}: the rival does not look into the records. 46 % of the daemon's time reads " +
		"the 16 numbers, 10 % adds them, 10 % ends steps, and 9 % fetches. The broker runs on the same two cores."
	refitWhy = "A record costs the daemon {{figure \"stream.BenchmarkRealDaemon/refit\" \"cpu-ns/record\" 1}} ns " +
		"of processor time and the broker {{figure \"stream.BenchmarkRealDaemon/refit\" \"cpu-ns/record-broker\" " +
		"1}}, and both run on the same two cores. If these did nothing else, the ratio would be {{figure " +
		"\"stream.BenchmarkRealDaemon/refit\" \"most-ratio\" 1}}. 37 % of the daemon's time are the solver's hundred " +
		"passes of clipped gradients over the rows of a window; 8 % rounds rows, 7 % adds records and 7 % makes the " +
		"Gram matrix. While a window is solved, the records of the next one are fetched and added."
	ledgerWhy = "An opening takes {{figure \"stream/ledger.BenchmarkLedger\" \"ns/open\" 1e-3}} µs, most of it " +
		"the search for ε, and a close {{figure \"stream/ledger.BenchmarkLedger\" \"ns/close\" 1e-3}} µs; neither " +
		"reads earlier lines. But the garbage collector has more lines to mark."
	overwriteWhy = "The rival overwrites and syncs one file, which is less safe; see Commits."
	replaceWhy   = "Besides the same four operations, a commit encodes and hashes the state and links the previous " +
		"commit to a second name."
	recordWhy = "For a record of 3 columns, the lattice takes two fifths of the time (norm, root, rounding, and a " +
		"second rounding for half of the shortened rows), the count of unshortened rows a fifth, the products a " +
		"fifth. The rival computes only the products, in a few nanoseconds. From about 20 columns on the products " +
		"dominate, and they are faster than the rival's."
	wordsWhy = "Ratios of 0.58 to 0.65 were measured, depending on machine and run: both sides take a few " +
		"nanoseconds per draw."
	setupWhy = "Half is SHA-256 of the transcript and of the keys of step and row: seven dependent blocks. Their " +
		"number follows from the key derivation, which open epochs keep. A quarter is the AES key schedule and its " +
		"allocation of 512 bytes, which `crypto/aes` cannot reuse. The rest is ten draws. This is a time, so it " +
		"depends on the machine and its load: the least of 3000 runs is 0.60 µs, where `NormFloat64` takes 7.1 ns."
	longNoiseWhy = "Buffers, predictions and integers of a row this long do not fit into a cache. About 150 bytes " +
		"per coordinate go through memory, which the rival does not use. The least of forty alternating runs gave " +
		"1.39 to 1.47, and 1.45 to 1.47 at D = 1024, where everything stays in the cache."
	jsonBytesWhy = "`strconv` computes the shortest digits that restore a float64 number by number, by the Dragonbox " +
		"algorithm: {{figure \"stream/core.BenchmarkEncode/json/d=100/strconv\" \"ns/unit-strconv\" 1}} ns per byte; " +
		"a copy takes {{figure \"stream/core.BenchmarkEncode/json/d=100/copy\" \"ns/unit-copy\" 1}}. Fewer digits " +
		"would be a different number. `output.privacy_every` omits the privacy block from most releases, and base64 " +
		"avoids digits."
	base64Why = "`encoding/base64` encodes about a gigabyte per second, a copy in the cache tens of them. A factor " +
		"of 2 would need vector code, although base64 takes only a tenth of a step at d = 100 and 1000 records."
	usersWhy = "Decoding and adding a record of a person costs {{figure \"stream/task.BenchmarkUsers\" \"ns/unit\" " +
		"1}} ns, one without a user key {{figure \"stream/task.BenchmarkUsers\" \"ns/unit-without\" 1}}, with 16 " +
		"numbers that only have to be copied. The tag is one AES block, about 40 ns. Finding its place in the table " +
		"waits for memory: {{figure \"internal/persons.BenchmarkPersons/take/1000000\" \"ns/unit\" 1}} ns, with 64 " +
		"look-ups at a time. The ratio is smaller with JSON, with more columns, and if persons return soon."
	normalWhy = "Iterative Hessian mixing computes the Gram matrix of the normal equations, rounds the rows to the " +
		"lattice while they are in the cache, and passes over them three times. All passes together take a sixth of " +
		"the time of the matrix, rounding another sixth. Ratios of 1.40 to 1.44 were measured on a quiet machine, " +
		"and 1.59 with eight other processes."
)

// endToEnd are the rows whose benchmarks use Kafka or the disk.
var endToEnd = []row{
	{path: "fetch and decode of 128-byte records, Apache Kafka",
		rival: "kafka-go's `RoundTrip` and `ReadRecord`, same log", bench: "internal/kafka.BenchmarkRealReader",
		unit: "ratio", inverse: true, goal: "≥ 2.5", why: realReaderWhy},
	{path: "fetch and decode, broker in another process with a synthetic log", rival: "the same",
		bench: "internal/kafka.BenchmarkReader", unit: "ratio", inverse: true, goal: "≥ 2.5", why: readerWhy},
	{path: "its processor time", rival: "the same", bench: "internal/kafka.BenchmarkReader", unit: "cpu-ratio",
		inverse: true},
	{path: "daemon, packed, d = 16, moments, step 1000, Apache Kafka", rival: "kafka-go's raw fetch of the same log",
		bench: "stream.BenchmarkRealDaemon/packed", unit: "ratio", speed: true, goal: "≥ 2", why: packedWhy},
	{path: "the same", rival: "franz-go's `PollFetches`", bench: "stream.BenchmarkRealDaemon/packed",
		unit: "ratio-franz", speed: true, goal: "≥ 1.2", why: packedWhy},
	{path: "daemon, JSON of 16 columns, Apache Kafka", rival: "the raw fetch", bench: "stream.BenchmarkRealDaemon/json",
		unit: "ratio", speed: true, goal: "≥ 0.8", why: jsonWhy},
	{path: "daemon, packed, d = 16, moments, Apache Kafka: processor time",
		rival: "a consumer without privacy: kafka-go's Reader, sums of products",
		bench: "stream.BenchmarkRealDaemon/packed", unit: "cpu-ratio-consumer"},
	{path: "daemon, JSON of 16 columns, Apache Kafka: processor time", rival: "the same consumer with encoding/json",
		bench: "stream.BenchmarkRealDaemon/json", unit: "cpu-ratio-consumer"},
	{path: "daemon, newton online, packed, d = 16, Apache Kafka", rival: "the raw fetch",
		bench: "stream.BenchmarkRealDaemon/newton", unit: "ratio", speed: true},
	{path: "daemon, refit by newton, packed, d = 16, Apache Kafka", rival: "the raw fetch",
		bench: "stream.BenchmarkRealDaemon/refit", unit: "ratio", speed: true, goal: "≥ 0.8", why: refitWhy},
	{path: "daemon, packed, d = 16, embedded broker in another process", rival: "this program's reader alone",
		bench: "stream.BenchmarkDaemon", unit: "ratio", speed: true},
	{path: "its processor time", rival: "the same", bench: "stream.BenchmarkDaemon", unit: "cpu-ratio"},
	{path: "time of a record after 10³ to 10⁷ records: largest over smallest", rival: "itself",
		bench: "stream/task.BenchmarkFlat", unit: "largest/smallest", goal: "≤ 1.1"},
	{path: "eight partitions merged, packed, d = 16, step 1000, without a broker", rival: "one partition",
		bench: "stream/input.BenchmarkMerge", unit: "ratio", speed: true, goal: "≥ 1.7"},
	{path: "ledger: opening an epoch after 1000 others, without the disk", rival: "after 10",
		bench: "stream/ledger.BenchmarkLedger", unit: "open-ratio", goal: "≤ 1.1", why: ledgerWhy},
	{path: "ledger: closing an epoch after 1000 others, without the disk", rival: "after 10",
		bench: "stream/ledger.BenchmarkLedger", unit: "close-ratio", goal: "≤ 1.1", why: ledgerWhy},
	{path: "ledger: the budget that status shows, after 1000 epochs", rival: "after 10",
		bench: "stream/ledger.BenchmarkLedger", unit: "status-ratio", goal: "≤ 1.1"},
	{path: "commit of 10 kB", rival: "overwriting and syncing one file", bench: "stream.BenchmarkCommit/10kB",
		unit: "ratio", goal: "≤ 1.3", why: overwriteWhy},
	{path: "commit of 100 kB", rival: "the same", bench: "stream.BenchmarkCommit/100kB", unit: "ratio", goal: "≤ 1.3",
		why: overwriteWhy},
	{path: "commit of 10 kB", rival: "equally safe: a new file, synced, renamed, directory synced",
		bench: "stream.BenchmarkCommit/10kB-safe", unit: "ratio", goal: "≤ 1.3", why: replaceWhy},
	{path: "commit of 100 kB", rival: "the same", bench: "stream.BenchmarkCommit/100kB-safe", unit: "ratio",
		goal: "≤ 1.3", why: replaceWhy},
}

// people are the rows on the cost of protecting persons.
var people = []row{
	{path: "daemon, packed, d = 16, moments, step 1000, with a user key, 10⁶ persons in random order, embedded " +
		"broker in another process, processor time", rival: "the same records without user key",
		bench: "stream.BenchmarkDaemonUsers", unit: "cpu-ratio", goal: "≤ 1.5", why: usersWhy},
	{path: "of that, decoding and adding, on one core", rival: "the same records without user key",
		bench: "stream/task.BenchmarkUsers", unit: "ratio"},
	{path: "look-up among 10⁶ persons in random order", rival: "Go's map, the same order",
		bench: "internal/persons.BenchmarkPersons/take/1000000", unit: "ratio"},
	{path: "among 10⁷", rival: "Go's map, the same order", bench: "internal/persons.BenchmarkPersons/take/10000000",
		unit: "ratio"},
	{path: "memory of a person, 10⁶ persons", rival: "–", bench: "internal/persons.BenchmarkPersons/take/1000000",
		unit: "bytes/person", suffix: " bytes"},
	{path: "10⁷ persons", rival: "–", bench: "internal/persons.BenchmarkPersons/take/10000000", unit: "bytes/person",
		suffix: " bytes"},
	{path: "start: 10⁶ contributions read back, without the disk", rival: "SHA-256 of the same bytes",
		bench: "internal/persons.BenchmarkPersons/start/1000000", unit: "ratio"},
	{path: "its time", rival: "–", bench: "internal/persons.BenchmarkPersons/start/1000000", unit: "ns/op",
		scale: 1e-9, suffix: " s"},
	{path: "10⁷ contributions", rival: "SHA-256 of the same bytes",
		bench: "internal/persons.BenchmarkPersons/start/10000000", unit: "ratio"},
	{path: "its time", rival: "–", bench: "internal/persons.BenchmarkPersons/start/10000000", unit: "ns/op",
		scale: 1e-9, suffix: " s"},
}

// kernels are the rows on loops that run for each record or step.
var kernels = []row{
	{path: "record of 3 columns: quantise, norm, sums", rival: rankOne, bench: "moments.BenchmarkAdd/d=3",
		unit: "ratio", goal: "≤ 2.5", why: recordWhy},
	{path: "record of 16", rival: rankOne, bench: "moments.BenchmarkAdd/d=16", unit: "ratio", goal: "≤ 1.2",
		why: recordWhy},
	{path: "record of 100", rival: rankOne, bench: "moments.BenchmarkAdd/d=100", unit: "ratio", goal: "≤ 0.8"},
	{path: "secure Gaussian words to integers, D = 1024", rival: plainDraws, bench: "dp.BenchmarkRow/D=1024",
		unit: "ratio", goal: "≤ 0.65", why: wordsWhy},
	{path: "noise of D = 10⁶", rival: plainDraws, bench: "dp.BenchmarkRow/D=1000000", unit: "ratio", goal: "≤ 0.65"},
	{path: "step set-up with absorption, D = 10", rival: "–", bench: "dp.BenchmarkStep/D=10", unit: "ns/op",
		scale: 1e-3, suffix: " µs", goal: "≤ 0.8 µs", why: setupWhy},
	{path: "noise without correlation, D = 10³, row absorbed", rival: plainDraws,
		bench: "matfact.BenchmarkNoise/identity/D=1000", unit: "ratio"},
	{path: "noise with BLT 4, D = 10³, row absorbed", rival: plainDraws, bench: "matfact.BenchmarkNoise/blt4/D=1000",
		unit: "ratio", goal: "≤ 1.5"},
	{path: "noise with BLT 4, D = 10⁶, row absorbed", rival: plainDraws, bench: "matfact.BenchmarkNoise/blt4/D=1000000",
		unit: "ratio", goal: "≤ 1.5", why: longNoiseWhy},
	{path: "noise with BLT 4 on two cores, D = 2²⁰", rival: "on one", bench: "matfact.BenchmarkCores/D=1048576",
		unit: "ratio", inverse: true, goal: "≥ 1.7"},
	{path: "JSON, 10 of 16 fields with 17 digits", rival: "`encoding/json` into a struct",
		bench: "stream/codec.BenchmarkJSONRatio/digits17", unit: "ratio", goal: "≤ 0.2"},
	{path: "Avro, 16 columns of 22 fields", rival: "`twmb/avro` into a struct of the columns",
		bench: "internal/schema.BenchmarkSchema/avro/struct", unit: "ratio"},
	{path: "the same", rival: "`twmb/avro` into a map", bench: "internal/schema.BenchmarkSchema/avro/map",
		unit: "ratio"},
	{path: "Protobuf, 16 columns of 22 fields", rival: "`dynamicpb`",
		bench: "internal/schema.BenchmarkSchema/protobuf/dynamicpb", unit: "ratio"},
	{path: "release of d = 100 with covariance, JSON", rival: "its numbers printed by `strconv`",
		bench: "stream/core.BenchmarkEncode/json/d=100/strconv", unit: "ratio"},
	{path: "the same", rival: "a copy of its bytes", bench: "stream/core.BenchmarkEncode/json/d=100/copy",
		unit: "ratio", goal: "≤ 2", why: jsonBytesWhy},
	{path: "release of d = 100 with covariance, base64", rival: "a copy of its bytes",
		bench: "stream/core.BenchmarkEncode/base64/d=100/copy", unit: "ratio", goal: "≤ 2", why: base64Why},
	{path: "Gram IHM, 2¹⁷×90", rival: "IHM whose sketches are formed", bench: "refit.BenchmarkIHM/dense", unit: "ratio",
		inverse: true, goal: "≥ 80"},
	{path: "the same", rival: "normal equations with the same kernels", bench: "refit.BenchmarkIHM/normal",
		unit: "ratio", goal: "≤ 1.5", why: normalWhy},
	{path: "the same", rival: "normal equations by gonum", bench: "refit.BenchmarkIHM/gonum", unit: "ratio"},
	{path: "Gram matrix of 2¹⁷×90 numbers", rival: "gonum's `Syrk`", bench: "internal/gram.BenchmarkSum/131072x90",
		unit: "ratio", goal: "≤ 0.75"},
	{path: "pass of clipped gradients, 36 000×8", rival: "a pass of plain gradient descent",
		bench: "internal/clipgrad.BenchmarkSum/36000x8", unit: "ratio"},
	{path: "Walsh–Hadamard, 2¹⁹×32", rival: "a copy of the array", bench: "refit.BenchmarkTransform/524288x32",
		unit: "ratio", goal: "≤ 10"},
	{path: "record of newton online, d = 10", rival: "plain whitening and a rank-1 update",
		bench: "sgd.BenchmarkNewtonAdd/d=10", unit: "ratio"},
	{path: "gradient of 10⁶ numbers, Adam", rival: "clipped and summed in float64",
		bench: "adam.BenchmarkAdd/pp_debiased/d=1000000", unit: "ratio"},
}

// table returns rows as a Markdown table. An arrow before the value shows which direction is better. If a row has the
// same rival as the row above it, the table says "the same".
func table(rows []row, kept *results) string {
	var b strings.Builder
	b.WriteString("| path | rival | now | goal |\n|---|---|---|---|\n")
	above := ""
	for _, r := range rows {
		rival := r.rival
		if rival == above && rival != "–" {
			rival = "the same"
		}
		above = r.rival
		value, met := r.value(kept)
		goal := or(r.goal, "–")
		switch met {
		case "yes":
			goal += ", met"
		case "no":
			goal += ", not met"
		}
		arrow := map[string]string{"higher": "↑", "lower": "↓"}[r.better()]
		fmt.Fprintf(&b, "| %s | %s | %s%s | %s |\n", r.path, rival, arrow, value, goal)
	}
	return b.String()
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
