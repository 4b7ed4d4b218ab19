package core

import (
	"strconv"
	"strings"
)

// Source names one partition of one topic of one cluster. Each Source has its own privacy budget.
type Source struct {
	Cluster   string `json:"cluster"`
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
}

// Merged is the partition number that stands for all partitions of a merged stream together.
const Merged = -1

// merged is the spelling of Merged in names and keys.
const merged = "merged"

// Task is the work of one stream on one partition, or on all its partitions if Partition is Merged.
type Task struct {
	Stream    string
	Partition int
}

// String returns NAME-PARTITION, or NAME-merged, the name of the task's files.
func (t Task) String() string { return t.Stream + "-" + PartitionName(t.Partition) }

// PartitionName returns a task's partition as text: its number, or "merged".
func PartitionName(partition int) string {
	if partition == Merged {
		return merged
	}
	return strconv.Itoa(partition)
}

// parsePartition parses the output of PartitionName, and accepts no other spelling.
func parsePartition(name string) (partition int, ok bool) {
	if name == merged {
		return Merged, true
	}
	n, err := strconv.ParseUint(name, 10, 31)
	return int(n), err == nil && name == strconv.FormatUint(n, 10)
}

// Part is one partition of a merged epoch.
type Part struct {
	Partition   int    `json:"partition"`
	Incarnation uint64 `json:"incarnation"` // number of the partition's log
	Base        int64  `json:"base"`        // first offset
}

// ParseTask parses the output of Task.String.
func ParseTask(name string) (t Task, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return t, false
	}
	n, ok := parsePartition(name[i+1:])
	return Task{name[:i], n}, ok
}
