package chaos

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// record returns a record of an output topic as a daemon writes it, with the given noise.
func record(key string, first, end int64, noise int) (k, v []byte) {
	return []byte(key), fmt.Appendf(nil,
		`{"schema":"streamdp.release.v1","offsets":[%d,%d],"values":{"mean":{"data":[%d]}}}`, first, end, noise)
}

// made returns evidence without a fault. It has two tasks in two ledgers, and epochs of three steps of ten offsets. One
// epoch is void, the last epochs are open, and some releases occur twice.
func made(t *testing.T) *evidence {
	t.Helper()
	e := &evidence{ledgers: make([][]line, 2), ends: map[task]int64{{"orders", "0"}: 89, {"orders", "1"}: 45},
		steps: 3, length: 10}
	clock := time.Unix(1000, 0)
	charge := func(shard int, kind string, epoch uint64, first, end int64) {
		l := map[string]any{"seq": len(e.ledgers[shard]) + 1, "prev": "", "kind": kind, "stream": "orders",
			"partition": shard, "epoch": epoch, "first": first, "end": end}
		if n := len(e.ledgers[shard]); n > 0 {
			sum := e.ledgers[shard][n-1].sum
			l["prev"] = hex.EncodeToString(sum[:])
		}
		raw, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		got, ok, err := parseLine(append(raw, '\n'), clock)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		e.ledgers[shard] = append(e.ledgers[shard], got)
		clock = clock.Add(time.Second)
	}
	publish := func(shard int, epoch, step uint64, first int64) {
		k, v := record(fmt.Sprintf("orders/%d/%d/%d", shard, epoch, step), first, first+10, int(first))
		r, err := parseRelease(k, v, clock)
		if err != nil {
			t.Fatal(err)
		}
		e.releases = append(e.releases, r)
		clock = clock.Add(time.Second)
	}
	for shard, open := range [][]uint64{{1, 3, 4}, {1, 2}} {
		offset := int64(0)
		for i, epoch := range open {
			if epoch == 3 {
				charge(shard, "open", 2, offset, -1)
				charge(shard, "void", 2, 0, 0)
			}
			charge(shard, "open", epoch, offset, -1)
			for step := range uint64(3) {
				if i == len(open)-1 && step > uint64(1-shard) {
					break // these stay open, at offsets 80 and 40
				}
				publish(shard, epoch, step+1, offset)
				offset += 10
			}
			if i < len(open)-1 {
				charge(shard, "close", epoch, 0, offset)
			}
		}
	}
	e.releases = append(e.releases, e.releases[2], e.releases[0])
	return e
}

// TestJudge puts each kind of fault into the evidence, and expects that the judge finds it.
func TestJudge(t *testing.T) {
	fine := made(t).judge()
	if len(fine.faults) > 0 || fine.releases != 12 || fine.duplicates != 2 || fine.epochs != 5 || fine.voids != 1 ||
		fine.conflicts != 0 {
		t.Fatalf("%+v", fine)
	}
	// again returns the lines of a ledger with new seals, after a change.
	again := func(lines []line) []line {
		for i := range lines {
			if i > 0 {
				lines[i].Seq, lines[i].Prev = lines[i-1].Seq+1, hex.EncodeToString(lines[i-1].sum[:])
			}
		}
		return lines
	}
	drop := func(key ...uint64) func(release) bool {
		return func(r release) bool {
			return r.partition == "0" && r.epoch == key[0] && (len(key) == 1 || r.step == key[1])
		}
	}
	for name, test := range map[string]struct {
		spoil func(e *evidence)
		want  string
	}{
		"two noises": {func(e *evidence) {
			r, _ := parseRelease2(t, e.releases[4])
			e.releases = append(e.releases, r)
		}, "orders/0/3/2 has two values"},
		"two noises, the second one first": {func(e *evidence) {
			r, _ := parseRelease2(t, e.releases[4])
			r.at = e.releases[11].at
			e.releases = append([]release{r}, e.releases...)
		}, "orders/0/3/2 has two values"},
		"a step is missing": {func(e *evidence) { e.releases = slices.DeleteFunc(e.releases, drop(1, 2)) },
			"epoch 1 lacks step 2"},
		"the first step is missing": {func(e *evidence) { e.releases = slices.DeleteFunc(e.releases, drop(3, 1)) },
			"epoch 3 lacks step 1"},
		"the last step is missing": {func(e *evidence) { e.releases = slices.DeleteFunc(e.releases, drop(3, 3)) },
			"epoch 3 was closed at offset 60, its releases end at 50"},
		"an epoch is missing": {func(e *evidence) { e.releases = slices.DeleteFunc(e.releases, drop(3)) },
			"epoch 3 has 0 steps of 3, and another one followed"},
		"the end is missing": {func(e *evidence) { e.releases = slices.DeleteFunc(e.releases, drop(4, 2)) },
			"orders/0: releases end at offset 70, the input at 89"},
		"a task is missing": {func(e *evidence) { e.ends[task{"orders", "2"}] = 5 },
			"orders/2 has neither releases nor charges"},
		"a release without a charge": {func(e *evidence) {
			e.releases = append(e.releases, release{task: task{"orders", "0"}, epoch: 9, step: 1})
		}, "orders/0: epoch 9 has releases and was never charged"},
		"a release of a void epoch": {func(e *evidence) {
			e.releases = append(e.releases,
				release{task: task{"orders", "0"}, epoch: 2, step: 1, at: e.releases[11].at})
		}, "orders/0: epoch 2 has releases and is void"},
		"a release before its charge": {func(e *evidence) { e.releases[3].at = e.ledgers[0][0].at },
			"orders/0/3/1 was published before its epoch was charged"},
		"opened twice": {func(e *evidence) {
			l := e.ledgers[0][0]
			e.ledgers[0] = again(append(e.ledgers[0], l))
		}, "orders/0: epoch 1 was opened twice"},
		"another line": {func(e *evidence) { e.ledgers[0][3].sum[5] ^= 1 },
			"ledger 0: line 5 does not continue line 4"},
		"a line is missing": {func(e *evidence) { e.ledgers[0] = slices.Delete(e.ledgers[0], 2, 4) },
			"ledger 0: line 5 does not continue line 2"},
		"a record is charged twice": {func(e *evidence) { e.ledgers[1][2].First = 20 },
			"orders/1: epoch 2 is charged from offset 20 on, the one before ended at 30"},
		"a record is left out": {func(e *evidence) { e.releases[4].offsets[0]++ },
			"step 2 of epoch 3 begins at offset 41, what is before it ends at 40"},
		"not closed": {func(e *evidence) { e.ledgers[1] = again(slices.Delete(e.ledgers[1], 1, 2)) },
			"orders/1: epoch 1 was never closed, and another one followed"},
		"two ledgers": {func(e *evidence) {
			l := e.ledgers[0][0]
			l.Epoch = 7
			e.ledgers[1] = again(append(e.ledgers[1], l))
		}, "orders/0 is in ledgers 0 and 1"},
	} {
		e := made(t)
		test.spoil(e)
		v := e.judge()
		if !slices.ContainsFunc(v.faults, func(f string) bool { return strings.Contains(f, test.want) }) {
			t.Errorf("%s: found %q, want %q", name, v.faults, test.want)
		}
		if conflict := strings.HasPrefix(name, "two noises"); (v.conflicts == 1) != conflict {
			t.Errorf("%s: %d conflicts", name, v.conflicts)
		}
	}
	for _, key := range []string{"orders/0/1", "orders/0/x/1", "orders/0/1/x", "orders/0/1/2/3"} {
		if k, v := record(key, 0, 10, 1); !fails(k, v) {
			t.Errorf("key %s was accepted as the key of a release", key)
		}
	}
}

// parseRelease2 returns a copy of a release with different noise.
func parseRelease2(t *testing.T, r release) (release, error) {
	t.Helper()
	k, v := record(fmt.Sprintf("%s/%d/%d", r.task, r.epoch, r.step), r.offsets[0], r.offsets[1], -1)
	return parseRelease(k, v, r.at)
}

func fails(k, v []byte) bool { _, err := parseRelease(k, v, time.Time{}); return err != nil }

func TestQuantile(t *testing.T) {
	list := make([]time.Duration, 100)
	for i := range list {
		list[i] = time.Duration(100 - i)
	}
	if a, b, c := quantile(list, 0.5), quantile(list, 0.99), quantile(list, 1); a != 51 || b != 100 || c != 100 {
		t.Errorf("%d %d %d", a, b, c)
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("of nothing")
	}
}
