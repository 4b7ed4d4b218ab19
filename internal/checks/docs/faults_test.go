package docs

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

//go:generate go test -run ^TestFaults$ -update

var update = flag.Bool("update", false, "write docs/faults.md")

// These are the ways of injecting a fault.
const (
	disk     = "simulated disk"
	broker   = "embedded broker"
	process  = "killed process"
	real     = "Apache Kafka"
	files    = "files changed"
	clockHow = "set clock"

	registryHow = "test registry"
)

// row is a row of the failure matrix, and the tests that verify it.
type row struct {
	event string // as in docs/theory/stream.md §4, if it is there
	how   string // how it is injected
	often string // how often in one run of the tests
	out   string // the outcome
	sees  string // what the user sees
	tests string // names, with the path of the package unless it is stream
}

var matrix = []row{
	{"crash before a commit", process + ", " + disk,
		"200 kills of moments, 40 to 60 of each other mechanism; before every disk operation of three epochs",
		"resumes with the bytes of an uninterrupted run",
		"nothing; metric `streamdp_releases_republished_total` if releases are sent again",
		"TestKill TestKillRegression TestKillNewton TestKillRefit TestDiskCrashes"},
	{"crash inside a commit", process + ", " + disk, "as above, counting kills that hit a commit",
		"the last commit is used", "nothing",
		"TestKill TestDiskCrashes stream/state.TestStore stream/state.TestStoreOnDisk"},
	{"crash between commit and acknowledgement", process, "as above, counting kills that hit one",
		"stored bytes are published again: duplicates with the same bytes",
		"two equal messages under one key until the output is compacted", "TestKill TestKillBroker TestKillsOfAll"},
	{"crash inside a ledger append", disk, "at every operation, with any part of the line on disk",
		"the torn line is cut off", "log: `removed an incomplete last line from the ledger`",
		"TestDiskCrashes stream/ledger.TestLedgerBits stream/ledger.TestGoldenLedger"},
	{"crash while opening", disk + ", " + process,
		"before every operation, by the next start, by two commands; 250 kills with short epochs in CI, 10 000 " +
			"nightly, and as many with merged partitions",
		"voided if the manifest is missing, else finished; never charged twice",
		"ledger: `void`; log: `the epoch was charged but never began`",
		"TestDiskCrashes TestInterruptedOpening TestInterruptedClosing TestKillsOfAll TestKillsOfMerged " +
			"TestMergedDiskCrashes"},
	{"files of a task deleted", files, "with the output also lost, in three ways", "halts; the charge stays",
		"halt `state`, exit code 4 if nothing else runs; `epoch open`, `recover --from`",
		"TestLostFiles TestLostCoverage stream/recovery.TestRecoverWhole"},
	{"broker gone, leader moved, request timed out", broker + ", " + process + ", " + real,
		"six kills of a broker while the daemon is killed; eight kinds of errors; three kills of Apache Kafka under " +
			"load in CI, twenty nightly", "retries without limit; nothing is lost or different",
		"`/-/ready` 503: `task orders-0 is retrying`; `/-/healthy` 200; metric `streamdp_kafka_errors_total`",
		"TestBrokerGone TestKillBroker TestKafkaFaults TestLeaderMoves TestRealKafkaKills TestRealKafkaEndToEnd " +
			"internal/kafka.TestRealKafkaCrash"},
	{"input topic or partition missing", broker, "each once", "waits",
		"state `retrying`: `input topic orders does not exist`", "TestTopicsMissing"},
	{"topics that match a pattern: more than `max_topics`, matched by two patterns, written by the process, " +
		"deleted, re-created", broker, "each once; 40 random orders of topics",
		"not taken; topics once taken stay taken, also after a restart; for a deleted topic the task waits; a " +
			"re-created one is another log",
		"log: `more topics match a pattern than allowed`, `a topic matches a pattern but gets no stream`; metric " +
			"`streamdp_pattern_topics`; halt `replaced`",
		"TestPatternBound TestPatternsOfOneTopic TestPatternReadsNoOutput TestPatternMadeAnew " +
			"config.TestPatternOutputs"},
	{"records deleted before they were read", broker + ", " + real, "before a start, and while the daemon runs",
		"halts; with `on_gap = \"null\"` the slots are empty", "halt `gap` with the offsets",
		"TestRetention TestRetentionLive TestRealKafkaLogHalts"},
	{"the record that identifies the log deleted, nothing unread", broker, "once", "trusts the log this once",
		"log: `the record that identifies the log was deleted`", "TestAnchorDeleted"},
	{"log ends before the next offset", broker + ", " + real, "shorter, empty, cut by a crash of the broker", "halts",
		"halt `truncated`; `epoch open`", "TestLogReplaced TestRealKafkaLogHalts internal/kafka.TestRealKafkaCrash"},
	{"topic re-created, rewritten, other cluster", broker + ", " + real,
		"refilled, cut and refilled, while the daemon runs, before the first record, on another cluster, with a " +
			"lower leader epoch", "halts before any release; noise of another log is independent",
		"halt `replaced`; `epoch open`",
		"TestLogReplaced TestLogReplacedBeforeFirst TestTopicMadeAgain TestEqualAtTheAnchor TestIncarnation " +
			"stream/task.TestMutatedLog TestRealKafkaLogHalts internal/kafka.TestOlderEpoch"},
	{"input compacted", broker + ", " + real, "once",
		"refused and not charged, unless `allow_compacted`; then releases say so",
		"halt `compacted`; `check --connect` ends with 3", "TestCompacted TestRealKafkaCommand"},
	{"output has releases that the state did not make, or that differ", broker + ", " + files,
		"a restored copy, one that diverges, one made while closed, forged keys, an unknown epoch",
		"compares; then goes on, or halts before it publishes",
		"log: `the output is ahead of this state`; not ready; halt `output_ahead` with the key",
		"TestRestoredCopy TestRestoredCopyForks TestRestoredClosed TestForkInOutbox TestUnknownEpoch " +
			"stream/output.TestStrayReleases stream/output.TestTailOvertaken"},
	{"two copies of one state at once", process + ", " + broker,
		"50 kills with seeded secrets; with random secrets and rollovers 250 kills in CI, 10 000 nightly",
		"the same bytes; if both open an epoch, at most its first release is published twice, and one copy halts " +
			"before its second", "halt `output_ahead`",
		"TestKillCopies TestKillsOfCopies TestCopiesRollOver TestCopyOpens TestFreshDirectory TestCopiesApart"},
	{"boundary topic made again, or lost records", broker + ", " + real + ", " + files + ", " + process,
		"re-created, also without topic ids, with old state and output; records deleted; a second partition; " +
			"compaction; several boundaries of one step; one without a MAC; simultaneous and restored copies; 12 " +
			"kills per run, or `STREAMDP_KILLS`; Apache Kafka killed twice",
		"the first boundary counts for all; a state that lacks one halts before a second release",
		"halt `boundary_topic`, `output_ahead`",
		"stream/boundary.TestClockRolledBack stream/boundary.TestClockTopicMadeAgain " +
			"stream/boundary.TestClockTopicAtStart stream/boundary.TestClockOlderLedger " +
			"stream/boundary.TestClockTopic stream/boundary.TestClockFirstCounts stream/boundary.TestClockCopies " +
			"stream/boundary.TestClockRecovery TestClockRefit TestClockMutant TestKillsOfClock TestClockDiskCrashes " +
			"TestRealKafkaClock"},
	{"steps by the clock: a partition does not answer, is quiet, has an open or an aborted transaction; records with " +
		"wrong timestamps", broker,
		"a leader gone for two steps, a quiet partition, transactions open at a boundary, records dated 2099 and 1970",
		"the partition's records fall into a later step, and no other partition waits; timestamps change no byte",
		"log and status name the partition",
		"stream/boundary.TestClockLeaderGone stream/boundary.TestClockMerged stream/boundary.TestClockTransactions " +
			"stream/boundary.TestClockIgnoresTimes"},
	{"steps by the clock: an epoch cannot end for a while, a broker is slow to return boundaries", broker,
		"an output that rejects releases for two periods, a reopened epoch whose input cannot be read, a hanging " +
			"read of the boundary topic",
		"the next epochs have a step for each period that passed; the next boundary is taken meanwhile", "nothing",
		"stream/boundary.TestClockRollsOver stream/boundary.TestClockOpensAgain stream/boundary.TestClockRefill " +
			"stream/boundary.TestClockStamps"},
	{"another state directory, or a newer copy, opened the epoch", broker,
		"two copies and two new directories at once, an old copy, foreign lines in the control topic, an unfit topic",
		"with a control topic: halts before the epoch's first noise", "halt `control_topic`",
		"stream/ledger.TestClaims stream/ledger.TestOldCopy stream/ledger.TestForeignControl " +
			"stream/ledger.TestUnfitControl stream/ledger.TestMirror"},
	{"output log starts after what was acknowledged", broker, "with and without a checkpoint", "halts",
		"halt `output_truncated`; `republish --only-copy`", "TestOutputTruncated stream/recovery.TestRepublish"},
	{"release larger than the topic takes", broker, "once", "halts; publishes when the topic accepts it",
		"halt `release_too_large` with the key", "TestTooLarge"},
	{"output rejects releases permanently", broker, "once", "halts; publishes when the topic accepts them",
		"halt `publish` with the broker's error", "TestPublishRefused"},
	{"output deleted while tasks start together", broker, "once, before they read it",
		"each halts, or waits for the topic", "halt `output_truncated`; `retrying` while a call is repeated",
		"stream/output.TestHistoryTroubled"},
	{"epoch opened after releases were given up, while one is in flight", broker, "once, held by the broker",
		"the opening waits for the broker's answer", "nothing",
		"stream/output.TestOpenWaitsForOwn stream/output.TestTailGivenUp"},
	{"output deleted while running", broker + ", " + real, "once", "created again; `republish` restores its content",
		"nothing; halt `output_truncated` if it is deleted while stopped",
		"TestOutputDeleted stream/recovery.TestRepublish TestRealKafkaLogHalts"},
	{"disk full, no descriptor left", disk,
		"from every fifth operation and opening of a file on, from all of them in CI",
		"the last commit is used; goes on when there is room",
		"`/-/ready` 503, state `retrying`: `no space left`, `too many open files`; metric " +
			"`streamdp_commit_errors_total`", "TestDiskFull TestDescriptorsOut stream/state.TestStoreFull"},
	{"other write or sync error", disk, "every second sync of three epochs, all of them in CI",
		"the process ends; the next start finds everything", "exit code 1 with the system's error",
		"TestDiskSyncFails"},
	{"checkpoint or manifest damaged", files, "a bit, a digit, a cut, a missing file; every bit of the golden files",
		"halts; `recover` recomputes and compares", "halt `state`; `recover`",
		"TestHaltedStates stream/state.TestStoreDamaged stream/recovery.TestRecover " +
			"stream/recovery.TestRecoverRefuses stream/state.TestGoldenCheckpoint"},
	{"files of persons damaged, missing, or of another time", files + ", " + disk,
		"a bit, a cut, all missing, with and without a cap; every byte of a position; before every operation " +
			"of a recovery",
		"halts; `recover` recomputes them and compares with published releases and the last commit",
		"halt `state`; `recover`",
		"stream/recovery.TestUsersRecover stream/recovery.TestUsersRecoverRefuses stream/task.TestUsersStateIsWhole " +
			"internal/persons.TestJournalDamage internal/persons.TestRewrite"},
	{"persons protected: crash, kill, full disk, closing, restored copy, output moved meanwhile",
		process + ", " + disk + ", " + files + ", " + real,
		"with a cap and a full table, with a separation alone, with three merged partitions; 12 kills per run, or " +
			"`STREAMDP_KILLS`; before operations on files of persons, with `STREAMDP_SLOW` before each; Apache " +
			"Kafka killed once",
		"the table is that of the last commit; the bytes of an uninterrupted run; no file outlives its epoch",
		"nothing; a full disk: state `retrying`",
		"TestKillsOfUsers TestRealKafkaUsers stream/state.TestUsersDiskCrashes TestMergedUsersDiskCrashes " +
			"stream/task.TestUsersCrashes TestUsersRestoredCopy TestUsersKillCopies " +
			"stream/task.TestUsersWhileOutputsAreCompared internal/persons.TestJournalCrashes " +
			"internal/persons.TestJournalFullDisk internal/persons.TestSpill"},
	{"ledger damaged or an old copy", files, "every bit of a sealed ledger; lines missing, repeated; an older ledger",
		"refused; nothing is charged; `ledger repair` recomputes it",
		"exit code 4: `ledger damaged`, or halt `state`: `restore the newest ledger`",
		"stream/recovery.TestLedgerRepair stream/ledger.TestLedgerBits TestLedgerOfTheState " +
			"stream/ledger.TestLedgerStories"},
	{"key file or secret changed or missing", files, "four ways", "halts before any noise", "halt `key`",
		"TestHaltedStates stream/recovery.TestRecoverWhole stream/state.TestEncryptedRecovery"},
	{"configuration changes the guarantee", files, "two keys", "halts until the change is undone",
		"halt `configuration` with old and new, exit code 4 if nothing else runs", "TestConfigurationEdited"},
	{"limit would be exceeded", broker, "by one stream, by several, in another adjacency", "nothing is opened",
		"halt `budget`, exit code 5 if nothing else runs",
		"TestLimit TestLimitShared stream/ledger.TestAdjacencies stream/ledger.TestAdjacencyChange"},
	{"horizon reached", broker, "halt, rollover, continue, on another log, without budget, without a broker",
		"closes; `rollover` opens a successor", "state `exhausted`, exit code 0; later starts: 5", "TestHorizon"},
	{"estimate diverges", broker, "once", "halts without revealing anything about the records", "halt `mechanism`",
		"TestRegressionDiverges"},
	{"a warm-up finds no bounds", broker, "once", "closes without revealing anything about the records",
		"epoch closed for reason `warmup`, exit code 5", "TestWarmupFails"},
	{"cluster rejects a call permanently", broker, "a policy, a wrong password", "halts; for a wrong password waits",
		"halt `kafka`", "TestHaltedStates stream/connect.TestWrongPassword"},
	{"invalid record", broker, "a dozen kinds of records in every place; a bomb of 1.8 GB; fuzzing of every codec",
		"zero row in its slot; steps, offsets and other releases stay the same",
		"class P metric `streamdp_diagnostic_records_rejected_total`",
		"TestNullInvariance stream/dryrun.TestRecordTooLarge TestBomb internal/kafka.TestBombs " +
			"stream/task.TestDeadLettersCrash stream/codec.FuzzJSON stream/codec.FuzzCSV"},
	{"almost no valid record", broker, "once", "goes on", "`/-/ready` 503, metric `streamdp_few_valid`, a warning",
		"TestMistypedColumn stream/monitor.TestCensus"},
	{"schema registry unreachable, slow, or failing", registryHow,
		"answers 401, 404 of a proxy, 500 and 503, no answer, no JSON, too much; a redirection; before a start and " +
			"while the daemon runs",
		"a starting task waits; a running one goes on, and records of a new schema become null after ten seconds",
		"log: `the schema registry does not answer`; metric `streamdp_registry_reachable`; state `retrying` at start",
		"TestSchemas internal/registry.TestOutage internal/registry.TestServers internal/registry.TestBounds " +
			"internal/registry.TestCredentials"},
	{"records with ids that no subject has, or without a frame", broker + ", " + registryHow,
		"one, and 50 000 in a batch; ids of other subjects; ids registered later",
		"each is null; the registry gets as many requests for one as for all",
		"class P metric `streamdp_diagnostic_schema_records_total`",
		"TestSchemas internal/registry.TestFlood internal/registry.TestShared"},
	{"new schema without a column, or with another type", broker + ", " + registryHow,
		"each once, while the daemon runs and before",
		"its records are null; if no version has the columns, a task waits before its epoch is charged",
		"log, once per version; metric `streamdp_schema_faults`; `check --connect` ends with 3",
		"TestSchemas TestCheckSchemas TestRealRegistry"},
	{"schema unusable; subject deleted and registered again", registryHow,
		"bad, too large, circular references; soft and permanent deletion",
		"records of that version are null; known schemas stay known", "log, once per version",
		"internal/registry.TestUnusable internal/registry.TestReferences internal/registry.TestDeleted"},
	{"partitions added", broker, "while the daemon runs, and before a start",
		"other tasks go on; with `input.partition = \"all\"` each becomes a task, otherwise nobody reads it",
		"metric `streamdp_unread_partitions`, a warning, `check --connect`; a log line",
		"TestAddedPartitions TestPartitionAdded TestAllPartitions"},
	{"partitions added to a merged stream", broker, "while the daemon runs", "the next epoch reads them",
		"metric `streamdp_unread_partitions`, a warning that names the command", "TestMergePartitionAdded"},
	{"a partition of a merged stream is slow or quiet", "embedded broker, Apache Kafka",
		"random paces; quiet while the daemon starts",
		"the others wait, `merge_ahead` steps ahead; the bytes do not depend on the pace",
		"`lag_records` grows, no step closes", "TestMerge TestMergeShuffled TestKillsOfMerged TestRealKafkaMerged"},
	{"a partition of a merged stream has no leader", "Apache Kafka, two brokers",
		"under load, and while the daemon starts", "retries until the leader is back; the same bytes",
		"state `retrying` with the partition, `/-/ready` 503", "TestRealKafkaMerged"},
	{"`merge` is switched on or off", files, "both", "halts while its other epochs are open; goes on where they ended",
		"halt `configuration`, which names the epochs to close", "TestMergeBecomes"},
	{"merged checkpoint damaged, state restored, ledger lost", files, "once each",
		"recomputed from all partitions and compared", "halt `state`; `recover`, `ledger repair`", "TestMergeRecovery"},
	{"streams are added, removed and changed while the daemon runs", broker,
		"once and repeatedly, under load, with another output, and while the daemon ends",
		"the others go on; a stream that returns continues its epoch; the bytes of an uninterrupted run; no epoch is " +
			"opened without being asked for", "halt `unopened` if an epoch must be opened; `epoch open`",
		"TestChange TestRunEndsChange"},
	{"the configuration is read again", broker + ", " + process,
		"repeatedly under load; with errors, with changes that a running daemon cannot take, with a limit below the " +
			"spent budget; 8 kills per run, 100 in CI",
		"taken whole or not at all; the bytes of an uninterrupted run; no epoch is opened, closed or charged",
		"`streamdp reload` prints the difference, or why it is refused: exit code 3, metric " +
			"`streamdp_config_last_load_successful`; halt `unopened`",
		"TestReload TestReloadRefused TestReloadLimit TestReloadHorizon TestReloadPatterns TestReloadAccess " +
			"TestReloadKilled cmd/streamdp.TestReloadCommand"},
	{"SIGHUP", "signal", "with the same file, another one, and one with errors", "the configuration is read again",
		"a log line", "cmd/streamdp.TestHangup"},
	{"SIGTERM", "signal", "12 times under load", "closed steps are committed and published", "exit code 0",
		"TestTerminate"},
	{"second process on the directory", "two daemons", "with and without the lock file", "refused",
		"exit code 4: `in use`", "TestStateLocked stream/ledger.TestLedgerLock"},
	{"ledger replaced, removed or written by another process", files, "each once", "halts; nothing is written",
		"halt `state`", "stream/ledger.TestLedgerLock"},
	{"another version of a mechanism", files, "an open epoch of the previous version, of `newton` and of `refit`",
		"halts without a release; a new epoch begins after the old one",
		"halt `configuration`: `version of mechanism: newton/v2 → newton/v3`", "TestEpochOfAnotherVersion"},
	{"another version or build of the program", files, "once", "goes on with the same bytes", "nothing",
		"TestAnotherBuild"},
	{"ledger of a version without MACs", files, "the golden file, and then every bit of it",
		"read; the next line binds all earlier ones", "nothing",
		"stream/ledger.TestLedgerBefore stream/ledger.TestGoldenLedger"},
	{"wall clock set forward and back while running", clockHow, "four jumps, of hours and of years",
		"ticks, releases and times of messages go on; secrets are kept by the wall clock",
		"the ledger's times are those of the wall clock", "TestClockJumps"},
	{"a closing takes longer than a tick", "simulated clock", "ten cases",
		"published at a later multiple, at most the third", "times of messages are ticks",
		"stream/task.TestCommitsAtTicks"},
	{"a refit solves its window for many ticks", "simulated clock", "once",
		"ticks and commits go on; the release is published at the next tick", "the same bytes as otherwise",
		"stream/task.TestClosesBesideTicks"},
	{"instances: a request of a transaction, or its answer, is lost, late, duplicated or refused", broker + ", " + real,
		"every fault at every request of two owners, in every order up to small bounds; each code of an answer; each " +
			"commit of three epochs refused once, and once unanswered",
		"the shard is lost and acquired again; the commit is complete or absent; nothing uncommitted was published",
		"log: `cannot run the shard: acquiring it again`; `streamdp_shards_lost_total{reason=\"unknown\"}`",
		"internal/shardlog.TestModel internal/shardlog.TestFaults internal/kafka/group.TestSessionAnswers " +
			"internal/kafka/group.TestSessionCutOff internal/kafka/group.TestSessionLostAnswer " +
			"internal/kafka/group.TestSessionLate stream/cluster.TestLogShardFaults"},
	{"instances: an owner pauses and returns, or a shard has two owners", broker + ", " + real,
		"four owners, none of which stops by itself, across two openings; an owner with an open transaction",
		"the last to acquire the shard owns it, commits of others are refused; each release has one value", "the same",
		"stream/cluster.TestOwners stream/cluster.TestOwnersNoFence internal/shardlog.TestMoved " +
			"internal/shardlog.TestOvertaken internal/kafka/group.TestSessionFence " +
			"internal/kafka/group.TestRealKafkaShard"},
	{"instances: a shard's state or ledger damaged, forged, mixed, shortened, old, re-created", broker + ", " + files,
		"24 ways, and a chunk of an aborted transaction; under an owner and before an acquisition",
		"halts, and nothing is spent; a state that lost its end is compared with the output",
		"`/-/ready` 503: `shard 3 is halted`, with a reason and details; `streamdp cluster check`",
		"internal/shardlog.TestDamage internal/shardlog.TestAborted internal/shardlog.TestOptions " +
			"internal/shardlog.TestLostState internal/shardlog.TestOldState internal/kafka/group.TestSessionCutLog " +
			"internal/kafka/group.TestSessionTopicMadeAnew internal/kafka/group.TestSessionReads " +
			"stream/cluster.TestLogShardRestored"},
}

// TestFaults checks that docs/faults.md equals the matrix, and that every test named there exists. Every fault of
// docs/theory/stream.md §4 and every reason of a halt must be in the matrix.
func TestFaults(t *testing.T) {
	root := cases.Root(t)
	tests := map[string]map[string]bool{} // package → names
	var b bytes.Buffer
	b.WriteString(`# Faults

What can go wrong, and what happens then. The tests in the last column inject the fault as the second column says. ` + "`go test ./...`" + ` runs them, except those against Apache Kafka (` + "`make test-kafka`" + `). [theory/stream.md](theory/stream.md) §4 says how each fault is detected, [operations.md](operations.md) what to do.

Without [cluster] the daemon joins no consumer group, so there are no rebalances.

Generated from internal/checks/docs/faults_test.go: ` + "`go generate ./internal/checks/docs`" + `.

| fault | injected by | outcome | what you see | tests |
| --- | --- | --- | --- | --- |
`)
	seen := map[string]bool{}
	all := ""
	for _, r := range matrix {
		if seen[r.event] || r.how == "" || r.often == "" || r.out == "" || r.sees == "" || r.tests == "" {
			t.Errorf("%q occurs twice, or is incomplete", r.event)
		}
		seen[r.event] = true
		all += r.sees + "\n"
		var names []string
		for _, full := range strings.Fields(r.tests) {
			dir, name := "stream", full
			if i := strings.LastIndexByte(full, '.'); i >= 0 {
				dir, name = full[:i], full[i+1:]
			}
			if tests[dir] == nil {
				tests[dir] = testsOf(t, filepath.Join(root, dir))
			}
			if !tests[dir][name] {
				t.Errorf("%q: package %s has no test %s", r.event, dir, name)
			}
			names = append(names, "`"+full+"`")
		}
		injected := r.how
		if r.often != "once" {
			injected += ": " + r.often
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.event, injected, r.out, r.sees, strings.Join(names, ", "))
	}

	theory, err := os.ReadFile(filepath.Join(root, "docs/theory/stream.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(theory), "\n## 4. Faults\n")
	section, _, ok2 := strings.Cut(section, "\n## 5.")
	if !ok || !ok2 {
		t.Fatal("docs/theory/stream.md has no section of faults")
	}
	n := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		event := strings.TrimPrefix(cells[0], "| ")
		if len(cells) < 3 || event == "event" || strings.HasPrefix(event, "---") {
			continue
		}
		if n++; !seen[event] {
			t.Errorf("docs/theory/stream.md §4 has the fault %q, for which the matrix names no test", event)
		}
	}
	if n < 25 {
		t.Errorf("%d faults in docs/theory/stream.md", n)
	}

	source, err := os.ReadFile(filepath.Join(root, "stream/failure/halt.go"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\t([A-Z]\w+) += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(reasons) < 14 {
		t.Errorf("%d reasons of halts", len(reasons))
	}
	for _, m := range reasons {
		if used(t, filepath.Join(root, "stream"), m[1]) && !strings.Contains(all, "halt `"+m[2]+"`") {
			t.Errorf("the matrix has no fault that leads to the halt %q", m[2])
		}
	}

	path := filepath.Join(root, "docs/faults.md")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if was, err := os.ReadFile(path); err != nil || !bytes.Equal(was, b.Bytes()) {
		t.Errorf("%s differs from the matrix; go generate ./internal/checks/docs writes it: %v", path, err)
	}
}

// used reports whether some package of the daemon uses a reason of package failure outside its tests.
func used(t *testing.T, dir, name string) bool {
	list, err := filepath.Glob(filepath.Join(dir, "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`\bfailure\.` + name + `\b`).Match(text) {
			return true
		}
	}
	return false
}

// testsOf returns the names of the tests and fuzz targets of a package.
func testsOf(t *testing.T, dir string) map[string]bool {
	names := map[string]bool{}
	list, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil &&
				(strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
