package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestStatusWarnings: below the table, status prints the warnings of each running task, under the task's name.
func TestStatusWarnings(t *testing.T) {
	var out bytes.Buffer
	task := monitor.TaskStatus{Stream: "orders", Partition: core.Merged, State: "running", FewValid: true,
		Warnings: []string{"a setting"}, Schemas: []connect.SchemaStatus{
			{Subject: "orders-value", Version: 3, ID: 17,
				Faults: []string{"weight: the schema has no such path", "paid: another"}},
			{Subject: "returns-value", Version: 1, ID: 2},
		}}
	if err := printStatus(&globals{stdout: &out}, []monitor.TaskStatus{task}, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"orders-merged: warning: a setting\n",
		"orders-merged: warning: the released counts show almost no valid records; check ",
		"orders-merged: warning: records with the newest schema of orders-value, version 3 (id 17), give no rows: " +
			"weight: the schema has no such path; paid: another\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the status lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "returns-value") {
		t.Errorf("a schema that fits:\n%s", &out)
	}
}
