package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestDefects has one line for each defect: the part of the example to replace, its replacement, and the resulting
// faults.
func TestDefects(t *testing.T) {
	t.Setenv("SECRET", "hunter2")
	f := func(old, new string, want ...string) {
		t.Helper()
		src := strings.Replace(orders, old, new, 1)
		if src == orders {
			t.Fatalf("%q is not there", old)
		}
		if got := faults(t, src); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %s\nwant %s", new, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	end := "workload = \"mean\"\n"

	// If a text is not TOML, that is its only reported fault.
	f("[state]", "[state", `3: not TOML: expected '.' or ']' to end table name, but got '\n' instead`)
	f("[state]", "[kafka]", "3: not TOML: Key 'kafka' has already been defined.")
	f("clip = 1.0", "clip = 1.0\nclip = 2", "22: not TOML: Key 'stream.orders.moments.clip' has already been defined.")
	f("epsilon = 1.0", "epsilon = 1e999", "16: not TOML: number is out of range for float64")
	f("step   = 100", "step = 99999999999999999999", "14: not TOML: number is out of range for int64")

	// These keys are unknown.
	f("clip =", "clib =", "21: stream.orders.moments.clib: unknown key (did you mean clip?)")
	f("centre =", "center =", "12: stream.orders.center: unknown key (did you mean centre?)")
	f(`workload =`, `workloda =`, "22: stream.orders.moments.workloda: unknown key (did you mean workload?)")
	f("delta =", "mu = 1\ndelta =", "17: stream.orders.privacy.mu: unknown key")
	f("[http]", "[htpp]", "6: htpp: unknown key (did you mean http?)")
	f("[http]", "[metrics]", "6: metrics: unknown key")
	f("[stream.orders]", "verbose = true\n[stream.orders]", "9: http.verbose: unknown key")
	f(end, end+"step = 100\n", "23: stream.orders.moments.step: unknown key (it belongs in [stream.orders])")
	f("step ", "clip = 1\nstep ", "14: stream.orders.clip: unknown key (it belongs in [stream.orders.moments])")
	f("[stream.orders.moments]", "[stream.orders.moment]",
		"20: stream.orders.moment: unknown key (did you mean moments?)")
	f("[stream.orders.moments]", "[stream.order.moments]",
		"9: stream.orders: a mechanism is required, such as [stream.orders.moments]",
		"20: stream.order.input: required table, with topic, columns",
		"20: stream.order.privacy: required table, with epsilon, delta, adjacency")

	// These keys are in upper case; the TOML package would accept them.
	f("clip = 1.0", "Clip = 1.0", "21: stream.orders.moments.Clip: keys are lower case (did you mean clip?)")
	f("clip = 1.0", "clip = 1.0\nCLIP = 2", "22: stream.orders.moments.CLIP: keys are lower case (did you mean clip?)")
	f("[http]", "[HTTP]", "6: HTTP: keys are lower case (did you mean http?)")

	// These names of streams are invalid.
	f("[stream.orders]", "[stream.Other]\n[stream.orders]",
		"9: stream.Other: the name of a stream must be 1 to 63 of a-z, 0-9, _ and -",
		"9: stream.Other.input: required table, with topic, columns",
		"9: stream.Other.privacy: required table, with epsilon, delta, adjacency",
		"9: stream.Other: a mechanism is required, such as [stream.Other.moments]")
	f("[http]", "[stream]\n\"a b\" = 1\n[http]",
		`7: stream."a b": the name of a stream must be 1 to 63 of a-z, 0-9, _ and -`,
		`7: stream."a b": must be a table (1)`)

	// These values have the wrong type.
	f("step   = 100", "step = 100.0",
		"14: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (100.0)")
	f("step   = 100", "step = 1e2",
		"14: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (100.0)")
	f("step   = 100", `step = "100"`,
		`14: stream.orders.step: must be a number of offsets, or a duration such as "1m" ("100")`)
	f("step   = 100", "step = 2026-01-01",
		"14: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (a date)")
	f("clip = 1.0", `clip = "1.0"`, `21: stream.orders.moments.clip: must be a number, or "auto" ("1.0")`)
	f("clip = 1.0", `clip = [1.0]`, `21: stream.orders.moments.clip: must be a number, or "auto"`)
	f(`topic = "orders"`, `topic = 3`, `10: stream.orders.input.topic: must be a string (3)`)
	f(`["amount", "items", "weight"]`, `"amount"`,
		`10: stream.orders.input.columns: must be a list of strings ("amount")`)
	f(`["amount", "items", "weight"]`, "[\n\"amount\",\n7,\n8]",
		`12: stream.orders.input.columns: must be a list of strings (7)`,
		`13: stream.orders.input.columns: must be a list of strings (8)`)
	f("partition = 0", `partition = "0"`,
		`10: stream.orders.input.partition: must be an integer or a list of integers, or "all" ("0")`)
	f("step   = 100", "step = 100\nmerge = true\nmerge_ahead = 0",
		"16: stream.orders.merge_ahead: must be 1 to 1000 (0)")
	f("step   = 100", "step = 100\nmerge = true\ndead_letter = { mode = \"reference\", topic = \"dead\" }",
		"16: stream.orders.dead_letter.mode: must be \"off\" with merge = true: dead letters can only follow one "+
			"partition "+
			"(\"reference\")")
	f(`start = "earliest", codec = "json", columns = ["amount", "items", "weight"] }`,
		"start = 7, codec = \"json\", columns = [\"amount\", \"items\", \"weight\"] }\nmerge = true",
		"10: stream.orders.input.start: must be \"earliest\" or \"latest\" with merge = true: each partition has its "+
			"own offsets")
	f("centre = [40.0, 3.0, 1.2]", "merge = true\ncentre = \"auto\"",
		"12: stream.orders.merge: must be false if centre, scale or a clip norm is \"auto\": a warm-up reads one "+
			"partition")
	f("partition = 0", `partition = ["all"]`,
		`10: stream.orders.input.partition: must be an integer or a list of integers ("all")`)
	f("partition = 0", `partition = [0, 1.0]`,
		`10: stream.orders.input.partition: must be an integer or a list of integers (1.0)`)
	f("[40.0, 3.0, 1.2]", `"40"`, `12: stream.orders.centre: must be a number or a list of numbers, or "auto" ("40")`)
	f("step   = 100", "step = 100\nwarmup = 5000",
		"15: stream.orders.warmup: belongs to a centre, scale or clip that is \"auto\" (5000)")
	f("step   = 100", "step = 100\nwarmup_mode = \"split\"",
		"15: stream.orders.warmup_mode: belongs to a centre, scale or clip that is \"auto\" (\"split\")")
	f("clip = 1.0", "clip = \"auto\"\n[stream.orders.moments.none]", "22: stream.orders.moments.none: unknown key")
	f(`output = { topic = "orders.dp" }`, `output = "orders.dp"`,
		`11: stream.orders.output: must be a table ("orders.dp")`)
	f(`"orders.dp"`, `"orders.dp", create = "yes"`, `11: stream.orders.output.create: must be true or false ("yes")`)
	f(`[http]`, "[[http]]", `6: http: must be a table`)
	f("[stream.orders.moments]", "[[stream.orders.moments]]", "20: stream.orders.moments: must be a table")
	f(end, end+"weights = 1\n", "23: stream.orders.moments.weights: must be a list of numbers (1)")

	// These numbers are not finite or out of range.
	f("epsilon = 1.0", "epsilon = nan", "16: stream.orders.privacy.epsilon: must be finite (NaN)")
	f("epsilon = 1.0", "epsilon = -inf", "16: stream.orders.privacy.epsilon: must be finite (-Inf)")
	f("clip = 1.0", "clip = inf", "21: stream.orders.moments.clip: must be finite (+Inf)")
	f("[40.0, 3.0, 1.2]", "[40.0,\n3.0, nan]", "13: stream.orders.centre: must be finite (NaN)")
	f("epsilon = 1.0", "epsilon = 1e9",
		"16: stream.orders.privacy.epsilon: must be smaller: with so little noise, the part of its tail that is "+
			"cut off would matter for every delta below 1 (1e+09)")
	f("epsilon = 1.0", "epsilon = 0", "16: stream.orders.privacy.epsilon: must be positive (0)")
	f("epsilon = 1.0", "epsilon = -1.5", "16: stream.orders.privacy.epsilon: must be positive (-1.5)")
	f("delta = 1e-8", "delta = 0.0", "17: stream.orders.privacy.delta: must be in (0, 1) (0.0)")
	f("delta = 1e-8", "delta = 1", "17: stream.orders.privacy.delta: must be in (0, 1) (1)")
	for _, delta := range []string{"1e-19", "1e-31", "1e-300"} {
		f("delta = 1e-8", "delta = "+delta,
			"17: stream.orders.privacy.delta: must be at least 2.2e-19: for a smaller delta, the part of the "+
				"noise's tail that is cut off would matter ("+delta+")")
	}
	f("limit_epsilon = 3.0", "limit_epsilon = 0.9",
		"19: stream.orders.privacy.limit_epsilon: must be at least epsilon, 1 (0.9)")
	f("limit_epsilon = 3.0", "limit_epsilon = 3\nlimit_delta = 1e-9",
		"20: stream.orders.privacy.limit_delta: must be at least delta, 1e-08 (1e-09)")
	f("limit_epsilon = 3.0", "limit_epsilon = 3\nlimit_delta = 1",
		"20: stream.orders.privacy.limit_delta: must be in (0, 1) (1)")
	f("step   = 100", "step = 0", "14: stream.orders.step: must be at least 1 (0)")
	f("step   = 100", "step = -60000000000", "14: stream.orders.step: must be at least 1 (-60000000000)")
	f("step   = 100", `step = "99ms"`, `14: stream.orders.step: must be at least "100ms" ("99ms")`)
	f("step   = 100", `step = "-1m"`, `14: stream.orders.step: must be at least "100ms" ("-1m")`)
	f("step   = 100", "step = 100\nstep_max = 5",
		"15: stream.orders.step_max: is only for steps by the clock, such as step = \"1m\" (5)")
	f("step   = 100", "step = \"1m\"",
		"1: kafka.boundary_topic: required, because [stream.orders] has steps by the clock")
	f("step   = 100", "step = 100\nhorizon = -1", "15: stream.orders.horizon: must be at least 0 (-1)")
	f("step   = 100", "step = 4096\nhorizon = 4503599627370496",
		"15: stream.orders.horizon: must be less: so many steps have more records than a log can hold "+
			"(4503599627370496)")
	f("step   = 100", "step = 100\nlattice_bits = 31", "15: stream.orders.lattice_bits: must be 24 to 30 (31)")
	f("partition = 0", "partition = -1", "10: stream.orders.input.partition: must be 0 to 2147483647 (-1)")
	f("partition = 0", "partition = 0, max_record_bytes = -1",
		"10: stream.orders.input.max_record_bytes: must be in [0, 1073741824] (-1)")
	f("partition = 0", "partition = 0, max_record_bytes = 1073741825",
		"10: stream.orders.input.max_record_bytes: must be in [0, 1073741824] (1073741825)")
	f("partition = 0", "partition = [0, 4294967296]",
		"10: stream.orders.input.partition: must be 0 to 2147483647 (4294967296)")
	f("partition = 0", "partition = []", "10: stream.orders.input.partition: must name at least one partition")
	f("partition = 0", "partition = [1, 0, 1]", "10: stream.orders.input.partition: must not be repeated (1)")
	f(`"orders.dp"`, `"orders.dp", partition = 2147483648`,
		"11: stream.orders.output.partition: must be 0 to 2147483647 (2147483648)")
	f("[80.0, 5.0, 2.0]", "[80.0, 5.0, 0.0]", "13: stream.orders.scale: must be positive, with a finite inverse (0.0)")
	// The same faulty element is reported once.
	f("[80.0, 5.0, 2.0]", "[0.0, 5.0, 0.0]", "13: stream.orders.scale: must be positive, with a finite inverse (0.0)")
	f("[80.0, 5.0, 2.0]", "-1", "13: stream.orders.scale: must be positive, with a finite inverse (-1)")
	f("[80.0, 5.0, 2.0]", "1e-310", "13: stream.orders.scale: must be positive, with a finite inverse (1e-310)")
	f("[80.0, 5.0, 2.0]", "[80.0, 5.0]",
		"13: stream.orders.scale: must be one number, or a list with one for each of the 3 columns")
	f("[40.0, 3.0, 1.2]", "[]", "12: stream.orders.centre: must be one number, or a list with one for each of the 3 "+
		"columns")
	f("[40.0, 3.0, 1.2]", "[1]", "12: stream.orders.centre: must be one number, or a list with one for each of the 3 "+
		"columns")

	// These durations are invalid.
	f("[http]", "commit_interval = 200\n[http]",
		`6: state.commit_interval: must be a duration such as "200ms", in quotes and with its unit (200)`)
	f("[http]", "commit_interval = \"200\"\n[http]",
		`6: state.commit_interval: must be a duration such as "200ms", in quotes and with its unit ("200")`)
	f("[http]", "commit_interval = \"0\"\n[http]",
		`6: state.commit_interval: must be a duration such as "200ms", in quotes and with its unit ("0")`)
	f("[http]", "commit_interval = \"\"\n[http]",
		`6: state.commit_interval: must be a duration such as "200ms", in quotes and with its unit ("")`)
	f("[http]", "commit_interval = \"-1s\"\n[http]",
		`6: state.commit_interval: must be at least "10ms", or "0s" ("-1s")`)
	f("[http]", "commit_interval = \"1ns\"\n[http]",
		`6: state.commit_interval: must be at least "10ms", or "0s" ("1ns")`)
	f("[\"localhost:9092\"]\n[state]",
		"[\"localhost:9092\", \"kafka.example:9092\"]\n[state]\ncommit_interval = \"0s\"",
		`4: state.commit_interval: must be at least "10ms" unless all brokers are loopback addresses: commits at every step are for tests ("0s")`)

	// These words are not among the accepted ones.
	f(`"zero-out"`, `"zeroout"`, `18: stream.orders.privacy.adjacency: must be "zero-out" or "replace" ("zeroout")`)
	f(`"zero-out"`, `"Replace"`, `18: stream.orders.privacy.adjacency: must be "zero-out" or "replace" ("Replace")`)
	f(`"mean"`, `"avg"`, `22: stream.orders.moments.workload: must be "mean", "sum", "exponential" or "window" ("avg")`)
	f(`"mean"`, `"exponentail"`+"\ndecay = 0.5",
		`22: stream.orders.moments.workload: must be "mean", "sum", "exponential" or "window" ("exponentail")`)
	f(`"json"`, `"xml"`,
		`10: stream.orders.input.codec: must be "json", "json-array", "csv", "float64", "float32", "avro", "protobuf" or "json-schema" ("xml")`)
	f(`"operator"`, `"everyone"`, `8: http.exposure: must be "operator" or "public" ("everyone")`)
	f(`[http]`, "[log]\nlevel = \"trace\"\nformat = \"xml\"\n[http]",
		`7: log.level: must be "debug", "info", "warn" or "error" ("trace")`,
		`8: log.format: must be "json" or "text" ("xml")`)
	f(`"earliest"`, `"begin"`, `10: stream.orders.input.start: must be "earliest", "latest" or an offset ("begin")`)
	f(`"earliest"`, `-1`, `10: stream.orders.input.start: must be "earliest", "latest" or an offset (-1)`)
	f(`"earliest"`, `"-1"`, `10: stream.orders.input.start: must be "earliest", "latest" or an offset ("-1")`)
	f(`"earliest"`, `"9223372036854775808"`,
		`10: stream.orders.input.start: must be "earliest", "latest" or an offset ("9223372036854775808")`)
	f(`"earliest"`, `1.0`, `10: stream.orders.input.start: must be "earliest", "latest" or an offset (1.0)`)

	// These required keys are missing.
	f("[kafka]\nbrokers = [\"localhost:9092\"]\n", "", "1: kafka: required table, with brokers")
	f("brokers = [\"localhost:9092\"]\n", "", "1: kafka.brokers: required")
	f("key_file = \"/etc/streamdp/key\"\n", "", "3: state.key_file: required")
	f("epsilon = 1.0\n", "", "15: stream.orders.privacy.epsilon: required")
	f("adjacency = \"zero-out\"\n", "", `15: stream.orders.privacy.adjacency: required, "zero-out" or "replace"`)
	f(`topic = "orders", `, ``, "10: stream.orders.input.topic: required")
	f(orders[strings.Index(orders, "[stream.orders]"):], "", "1: stream: at least one [stream.NAME] is required")

	// These streams have no mechanism, several, or an invalid one.
	f("[stream.orders.moments]\nclip = 1.0 ", "#",
		"9: stream.orders: a mechanism is required, such as [stream.orders.moments]",
		"21: stream.orders.privacy.workload: unknown key (it belongs in [stream.orders.moments])")
	f(end, end+"[stream.orders.adam]\nclip = 1.0\nrate = 0.1\n",
		"23: stream.orders.adam: a stream has exactly one mechanism, and this one has [stream.orders.moments]")

	// These settings of credentials are incomplete or contradict each other.
	f("[state]", "tls.cert_file = \"c.pem\"\n[state]", `3: kafka.tls.cert_file: needs key_file too`)
	f("[state]", "tls.key_file = \"k.pem\"\n[state]", `3: kafka.tls.key_file: needs cert_file too`)
	f("[state]", "sasl = { mechanism = \"gssapi\", username = \"u\", password_file = \"p\" }\n[state]",
		`3: kafka.sasl.mechanism: must be "plain", "scram-sha-256", "scram-sha-512", "oauthbearer" or "aws-msk-iam" ("gssapi")`)
	f("[state]", "sasl.username = \"u\"\n[state]",
		`3: kafka.sasl.mechanism: required, "plain", "scram-sha-256", "scram-sha-512", "oauthbearer" or "aws-msk-iam"`)

	sasl := func(text string, want ...string) { t.Helper(); f("[state]", "sasl = { "+text+" }\n[state]", want...) }
	sasl(`mechanism = "plain"`, `3: kafka.sasl.username: required`, `3: kafka.sasl.password_file: required`)
	sasl(`mechanism = "scram-sha-512", username = "u", password_file = "p", token_file = "t"`,
		`3: kafka.sasl.token_file: must be absent with mechanism = "scram-sha-512"`)
	sasl(`mechanism = "oauthbearer"`, `3: kafka.sasl.token_url: required unless token_file is set`)
	sasl(`mechanism = "oauthbearer", token_file = "t", username = "u"`,
		`3: kafka.sasl.username: must be absent with mechanism = "oauthbearer"`)
	sasl(`mechanism = "oauthbearer", token_file = "t", token_url = "https://o", scopes = ["s"]`,
		`3: kafka.sasl.token_url: must be absent with token_file: another program fetches that token`,
		`3: kafka.sasl.scopes: must be absent with token_file: another program fetches that token`)
	sasl(`mechanism = "oauthbearer", token_url = "https://o"`, `3: kafka.sasl.client_id: required`,
		`3: kafka.sasl.client_secret_file: required`)
	sasl(`mechanism = "aws-msk-iam", username = "u"`,
		`3: kafka.sasl.username: must be absent with mechanism = "aws-msk-iam"`, `3: kafka.sasl.region: required`)
	sasl(`mechanism = "aws-msk-iam", region = "Frankfurt", role_arn = "admin"`,
		`3: kafka.sasl.region: must be a region of AWS, such as "eu-central-1" ("Frankfurt")`,
		`3: kafka.sasl.role_arn: must be the ARN of a role, "arn:aws:iam::ACCOUNT:role/NAME" ("admin")`)
	for _, bad := range []string{"http://o.example/token", "https://u:p@o.example/token", "https://", "o.example",
		"https://o/#f"} {
		const rule = `must be a URL that begins with "https://" ("http://" on a loopback address), without a user`
		sasl(fmt.Sprintf(`mechanism = "oauthbearer", token_url = %q, client_id = "c", client_secret_file = "p"`, bad),
			fmt.Sprintf(`3: kafka.sasl.token_url: %s (%q)`, rule, bad))
	}
	sasl(`mechanism = "oauthbearer", token_file = "t", extensions = ["auth=x", "a1=x", "a=b"]`,
		`3: kafka.sasl.extensions: must be NAME=VALUE, a name of letters that is not "auth" ("auth=x")`,
		`3: kafka.sasl.extensions: must be NAME=VALUE, a name of letters that is not "auth" ("a1=x")`)
	sasl(
		`mechanism = "oauthbearer", token_url = "http://127.0.0.1/t", client_id = "c", client_secret_file = "p", scopes = ["a b"]`, `3: kafka.sasl.scopes: must be a scope: printable, without spaces, quotes and backslashes ("a b")`)

	// These keys existed in no version, or in earlier versions that accepted only their default.
	const former = `unknown key (remove it: it has no effect in this version)`
	f("[state]", "group = \"a b\"\n[state]",
		`3: kafka.group: must be 1 to 200 of letters, digits, ".", "_" and "-" ("a b")`)
	f("[state]", "control_topic = \"a b\"\n[state]",
		`3: kafka.control_topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("a b")`)
	f("[state]", "control_topic = \"orders\"\n[state]",
		`3: kafka.control_topic: must not be an input topic, as stream.orders.input.topic is ("orders")`)
	f("[state]", "control_topic = \"orders.dp\"\n[state]",
		`3: kafka.control_topic: must differ from the topic of stream.orders.output.topic ("orders.dp")`)
	f("[http]", "[http]\npprof = true\ntls = {}\nbasic_auth = {}", `7: http.pprof: `+former,
		`8: http.tls.cert_file: required`, `8: http.tls.key_file: required`, `9: http.basic_auth.username: required`,
		`9: http.basic_auth.password_file: required`)
	f("step ", "user.cap = 1\nstep ", `14: stream.orders.user.key: required`,
		`14: stream.orders.user.max_users: required`)
	f("step ", "dead_letter = { mode = \"reference\" }\nstep ",
		`14: stream.orders.dead_letter.topic: required, because mode is not "off"`)
	f("step ", "dead_letter = { mode = \"some\", topic = \"d\" }\nstep ",
		`14: stream.orders.dead_letter.mode: must be "off", "reference" or "full" ("some")`)
	f("step ", "dead_letter = { mode = \"full\", topic = \"orders\" }\nstep ",
		`14: stream.orders.dead_letter.topic: must differ from the topic of stream.orders.input.topic ("orders")`)
	f("step ", "dead_letter = { mode = \"full\", topic = \"orders.dp\" }\nstep ",
		`14: stream.orders.dead_letter.topic: must differ from the topic of stream.orders.output.topic ("orders.dp")`)

	f("[http]", "epoch_secret_retention = \"-1h\"\n[http]",
		`6: state.epoch_secret_retention: must be at least "0s" ("-1h")`)
	f(end, end+"factorization = \"bsr\"\nbands = 400\n", `24: stream.orders.moments.bands: must be 1 to 256 (400)`)
	f(end, end+"factorization = \"banded\"\nbands = 65\n",
		`20: stream.orders.moments.tune: must be set, or else the stream's horizon, for factorization "banded" of a sum or mean`,
		`24: stream.orders.moments.bands: must be at most 64 for factorization "banded" (65)`)
	f(end, end+"factorization = \"dense\"\n",
		`23: stream.orders.moments.factorization: "dense" needs the stream's horizon`)
	f(end, end+"normalise = true\n",
		`23: stream.orders.moments.normalise: belongs to factorizations "sqrt", "bsr", "bisr", "banded" and "blt" (true)`)
	f(end, end+"normalise = true\nfactorization = \"bsr\"\n",
		`23: stream.orders.moments.normalise: needs a horizon of at most 65536 steps (true)`)

	// The mechanism's package reports these faults. They must have the right line.
	f("clip = 1.0", "clip = -1.0", "21: stream.orders.moments.clip: must be positive and finite (-1)")
	f(`"mean"`, `"mean"`+"\ndecay = 0.5", `23: stream.orders.moments.decay: belongs to workload "exponential" (0.5)`)
	f(`"mean"`, `"exponential"`, `20: stream.orders.moments.decay: required for workload "exponential"`)
	f(`"mean"`, `"window"`, `20: stream.orders.moments.window: required for workload "window"`)
	f(`"mean"`, `"sum"`+"\ncovariance = true", `23: stream.orders.moments.covariance: a sum has no covariance (true)`)
	f(`"mean"`, `"mean"`+"\nfactorization = \"sqrt\"",
		`23: stream.orders.moments.factorization: "sqrt" needs the stream's horizon`)
	f(`"mean"`, `"mean"`+"\nnu = 1\ninflation = 2",
		`23: stream.orders.moments.nu: give at most one of nu, weights and inflation`)
	f(`"mean"`, `"mean"`+"\nmethod = \"ime\"\nnu = 1",
		`24: stream.orders.moments.nu: belongs to the methods "auto", "jme" and "combined"`)
	f(`"mean"`, `"mean"`+"\nmethod = \"pp\"",
		`23: stream.orders.moments.method: must not be "pp" for steps of several slots: the method squares single rows, but here it would square the sum of a step's rows`)
	f(`"mean"`, `"mean"`+"\nmethod = \"cs\"",
		`20: stream.orders.moments.tau: must be positive and finite for method "cs" (0)`)
	f(`"mean"`, `"mean"`+"\ntau = 1\nsplit = 0.4\nmetric = \"sum\"\nmethod = \"jme\"",
		`23: stream.orders.moments.tau: belongs to method "cs" (1)`,
		`24: stream.orders.moments.split: belongs to method "ime" (0.4)`,
		`25: stream.orders.moments.metric: belongs to method "auto" ("sum")`)
	f(`"mean"`, `"mean"`+"\npsd_floor = -1", `23: stream.orders.moments.psd_floor: must be at least 0 (-1)`)
	f(`"mean"`, `"mean"`+"\npsd_floor = 0\ncovariance = false",
		`23: stream.orders.moments.psd_floor: needs the covariance`)
	f(`"orders.dp"`, `"orders.dp", values = ["mean", "covariance_psd"]`,
		`11: stream.orders.output.values: must be a value that this stream publishes: "mean", "second_moment", "covariance", "mean_original", "covariance_original" or "full_share" ("covariance_psd")`)
	f(`"mean"`, `"mean"`+"\nweights = [1]", `23: stream.orders.moments.weights: must be two positive numbers ([1])`)
	f(`"mean"`, `"window"`+"\nwindow = -1", `23: stream.orders.moments.window: must be at least 1 (-1)`)

	// These settings of the horizon are invalid.
	f("step ", "on_horizon = \"halt\"\nstep ", `14: stream.orders.on_horizon: needs a horizon ("halt")`)
	f("step ", "horizon = 10\non_horizon = \"stop\"\nstep ",
		`15: stream.orders.on_horizon: must be "halt", "rollover" or "continue" ("stop")`)
	for extra, why := range map[string]string{
		"factorization = \"sqrt\"\n":                   `factorization "sqrt" ends at the horizon`,
		"factorization = \"dense\"\n":                  `factorization "dense" ends at the horizon`,
		"factorization = \"bisr\"\nnormalise = true\n": `normalised noise ends at the horizon`,
	} {
		src := strings.Replace(orders, "step   = 100", "step = 100\nhorizon = 10\non_horizon = \"continue\"", 1) + extra
		if got := faults(t, src); !slices.Equal(got,
			[]string{`16: stream.orders.on_horizon: must not be "continue": ` + why}) {
			t.Error(got)
		}
	}

	// These addresses, topics and files are invalid.
	f(`["localhost:9092"]`, `[]`, "2: kafka.brokers: must name at least one broker")
	f(`["localhost:9092"]`, `["localhost"]`, `2: kafka.brokers: must be host:port ("localhost")`)
	f(`["localhost:9092"]`, "[\"a:1\",\n\":9092\",\n\"h:0\", \"h:65536\", \"h:kafka\", \"kafka://h:9\"]",
		`3: kafka.brokers: must be host:port (":9092")`, `4: kafka.brokers: must be host:port ("h:0")`,
		`4: kafka.brokers: must be host:port ("h:65536")`, `4: kafka.brokers: must be host:port ("h:kafka")`,
		`4: kafka.brokers: must be host:port ("kafka://h:9")`)
	f(`["localhost:9092"]`, `["a:1", "b:1", "a:1"]`, `2: kafka.brokers: must not be repeated ("a:1")`)
	const beyond = `must be a loopback address, unless there is [http.tls] or [http.basic_auth], or http.insecure_listen = true`
	for _, address := range []string{":9464", "0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464",
		"metrics.example.org:9464"} {
		f(`"127.0.0.1:9464"`, fmt.Sprintf("%q", address), fmt.Sprintf(`7: http.listen: %s (%q)`, beyond, address))
		f(`"127.0.0.1:9464"`, fmt.Sprintf("%q\ninsecure_listen = false", address),
			fmt.Sprintf(`7: http.listen: %s (%q)`, beyond, address))
	}
	f(`[http]`, "[http]\nhosts = [\"a:1\"]\nbasic_auth = { username = \"a:b\", password_file = \"p\" }",
		`7: http.hosts: must be a host's name, without a port ("a:1")`,
		`8: http.basic_auth.username: must be a name without a colon ("a:b")`)
	f(`"127.0.0.1:9464"`, `"9464"`, `7: http.listen: must be an address such as "127.0.0.1:9464" ("9464")`)
	f(`topic = "orders"`, `topic = "or ders"`,
		`10: stream.orders.input.topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("or ders")`)
	f(`topic = "orders"`, `topic = ".."`,
		`10: stream.orders.input.topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("..")`)
	f(`topic = "orders"`, `topic = ""`, `10: stream.orders.input.topic: must not be empty`)
	f(`"/var/lib/streamdp"`, `""`, `4: state.dir: must not be empty`)
	f(`"/var/lib/streamdp"`, `"/var\n"`, `4: state.dir: must not contain control characters`)
	f(`topic = "orders.dp"`, `topic = "orders"`,
		`11: stream.orders.output.topic: must not be an input topic, as stream.orders.input.topic is ("orders")`)

	// These lists of columns are invalid.
	f(`["amount", "items", "weight"]`, `[]`, "10: stream.orders.input.columns: must name at least one column")
	f(`"items", "weight"]`, "\"items\",\n \"amount\"]",
		`11: stream.orders.input.columns: must not be repeated ("amount")`)
	f(`"items"`, `""`, `10: stream.orders.input.columns: must not be empty`)
	f(`"items"`, `"a..b"`,
		`10: stream.orders.input.columns: must be a name, or a path such as "a.b[0].c"; inside a name, write a backslash before . \ [ or ] ("a..b")`)
	f(`"items"`, `"amount.net"`, `10: stream.orders.input.columns: must not lie inside another column ("amount.net")`)
	f(`codec = "json", columns = ["amount", "items", "weight"]`, `codec = "csv", columns = ["1", "0", "x"]`,
		`10: stream.orders.input.columns: must be a position from "1" to "1000000" ("0")`,
		`10: stream.orders.input.columns: must be a position from "1" to "1000000" ("x")`)

	// These lists of output values are invalid.
	f(`"orders.dp"`, `"orders.dp", values = ["mean", "sum"]`,
		`11: stream.orders.output.values: must be a value that this stream publishes: "mean", "second_moment", "covariance", "mean_original", "covariance_original" or "full_share" ("sum")`)
	f(`"orders.dp"`, `"orders.dp", values = ["mean", "mean"]`,
		`11: stream.orders.output.values: must not be repeated ("mean")`)

	// These uses of environment variables are invalid.
	f(`"/var/lib/streamdp"`, `"${STREAMDP_NOT_SET}/x"`,
		`4: state.dir: environment variable STREAMDP_NOT_SET is not set`)
	f(`"/var/lib/streamdp"`, `"${}"`,
		`4: state.dir: ${ must be followed by the name of an environment variable and }, as in ${HOME}; write $${ for a literal ${`)
	f(`"/var/lib/streamdp"`, `"${HOME"`,
		`4: state.dir: ${ must be followed by the name of an environment variable and }, as in ${HOME}; write $${ for a literal ${`)
	f(`"zero-out"`, `"${SECRET}"`, `18: stream.orders.privacy.adjacency: must be "zero-out" or "replace" ("${SECRET}")`)
	f(`"items"`, `"${SECRET}.", "x"`,
		`10: stream.orders.input.columns: must be a name, or a path such as "a.b[0].c"; inside a name, write a backslash before . \ [ or ] ("${SECRET}.")`)
}

// TestStreams checks the faults of conflicts between two streams.
func TestStreams(t *testing.T) {
	f := func(edit *strings.Replacer, want ...string) {
		t.Helper()
		if got := faults(t, edit.Replace(orders+other)); !slices.Equal(got, want) {
			t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	c := parse(t, "# before all\n"+other+orders)
	if len(c.Streams) != 2 || c.Streams[0].Name != "orders" || c.Streams[1].Name != "other" {
		t.Error("streams are not sorted by name")
	}
	f(strings.NewReplacer("epsilon = 2", "epsilon = 3", "limit_epsilon = 3 ", "limit_epsilon = 3.5 "),
		"27: stream.other.privacy.limit_epsilon: must be the same as in [stream.orders], which reads the same topic: "+
			"3 (3.5)")
	f(strings.NewReplacer("limit_epsilon = 3 ", "limit_epsilon = 3, limit_delta = 1e-6 "),
		"27: stream.other.privacy.limit_delta: must be the same as in [stream.orders], which reads the same topic: "+
			"1e-08 (1e-06)")
	f(strings.NewReplacer("delta = 1e-8, adj", "delta = 1e-9, adj"),
		"27: stream.other.privacy.limit_delta: must be the same as in [stream.orders], which reads the same topic: "+
			"1e-08 (1e-09)")
	f(strings.NewReplacer("delta = 1e-8, adj", "delta = 1, adj"),
		"27: stream.other.privacy.delta: must be in (0, 1) (1)")
	f(strings.NewReplacer(`"zero-out", limit`, `"replace", limit`),
		`27: stream.other.privacy.adjacency: must be the same as in [stream.orders], which reads the same topic: "zero-out" ("replace")`)
	f(strings.NewReplacer(`topic = "orders", columns`, `topic = "elsewhere", columns`, `"zero-out", limit`,
		`"replace", limit`))
	f(strings.NewReplacer(`"other.dp"`, `"orders.dp"`),
		`25: stream.other.output.topic: must differ from the topic of stream.orders.output.topic ("orders.dp")`)
	f(strings.NewReplacer(`"other.dp"`, `"orders"`),
		`25: stream.other.output.topic: must not be an input topic, as stream.orders.input.topic is ("orders")`)
	f(strings.NewReplacer(`topic = "orders", columns`, `topic = "orders.dp", columns`),
		`11: stream.orders.output.topic: must not be an input topic, as stream.other.input.topic is ("orders.dp")`)
	// A typo in one stream is found even if the other stream has the key.
	f(strings.NewReplacer("moments.clip = 2", "moments.clip = 2\nmoments.workoad = \"mean\""),
		"29: stream.other.moments.workoad: unknown key (did you mean workload?)")
}

// TestEveryFaultAtOnce checks that no fault hides another one, and that no reported fault is wrong.
func TestEveryFaultAtOnce(t *testing.T) {
	_, err := Load("testdata/faults.toml")
	if err == nil {
		t.Fatal("accepted")
	}
	want, e := os.ReadFile("testdata/faults.txt")
	if e != nil {
		t.Fatal(e)
	}
	if got := err.Error() + "\n"; got != string(want) {
		t.Errorf("got\n%s", got)
	}
	if _, ok := errors.AsType[*Fault](err); !ok {
		t.Error("errors.As does not find a single fault")
	}
}

// TestTraps checks cases that the TOML package alone would accept or report badly.
func TestTraps(t *testing.T) {
	f := func(src, want string) {
		t.Helper()
		if got := strings.Join(faults(t, src), "\n"); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	// The TOML package's Undecoded misses a typo in one table of an array if another table has the right key.
	f("[[stream]]\nstep = 1\n[[stream]]\nsteb = 1\n", "1: stream: must be a table")
	// The TOML package gives no line for an unknown key.
	f(orders+"\n\nfoo = 1\n", "25: stream.orders.moments.foo: unknown key")
	// The TOML package reports only the first value of a wrong type, and gives its line only in the error's text.
	f(strings.NewReplacer("clip = 1.0", "clip = true", "step   = 100", "step = true").Replace(orders),
		"14: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (true)\n"+
			"21: stream.orders.moments.clip: must be a number, or \"auto\" (true)")
	// The TOML package reads a bare integer as nanoseconds.
	f(strings.Replace(orders, "[http]", "commit_interval = 5\n[http]", 1),
		"6: state.commit_interval: must be a duration")
	// The TOML package accepts nan and inf as numbers.
	f(strings.Replace(orders, "delta = 1e-8", "delta = nan", 1),
		"17: stream.orders.privacy.delta: must be finite (NaN)")
	// The TOML package matches keys in any case, and uses the last one.
	f(strings.Replace(orders, "delta = 1e-8", "delta = 1e-8\nDelta = 0.5", 1),
		"18: stream.orders.privacy.Delta: keys are lower case")
	f(strings.Replace(orders, "[http]", "[Http]", 1), "6: Http: keys are lower case")
	// The TOML package accepts a number instead of a table in some places.
	f(strings.Replace(orders, "[http]\nlisten = \"127.0.0.1:9464\"\nexposure = \"operator\"", "", 1)+"[log.level]\n",
		"21: log.level: must be a string")
	f("http = 1\n"+strings.Replace(orders, "[http]", "[log]", 1), "1: http: must be a table (1)")
	// An integer is accepted instead of a float, but never a float instead of an integer.
	f(strings.Replace(orders, "step   = 100", "step = 100.5", 1),
		"14: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (100.5)")
	// The parser panics in states that it considers its own bugs.
	for _, src := range []string{"a = 0b", "a = 0x", "a = 0o", "x = \"\"\"\\\r\"\"\"", "\xff\xfea", "\x00",
		"a = \"\x00\""} {
		f(src, "1: not TOML")
	}
}
