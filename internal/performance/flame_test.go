package main

import (
	"encoding/xml"
	"strings"
	"testing"
	"time"
)

// TestFlame: the times of stacks are added to all their callers, and the picture is valid XML with every wide function.
func TestFlame(t *testing.T) {
	root, err := stacks([]byte(`File: stream.test
Type: cpu
Duration: 1s, Total samples = 60ms (6%)
-----------+-------------------------------------------------------
      10ms   a/b.(*T[go.shape.int]).leaf (inline)
             a/b.caller
             main.main
-----------+-------------------------------------------------------
     bytes:  10
      30ms   a/b.caller
             main.main
-----------+-------------------------------------------------------
       20ms   runtime.<root>
`))
	if err != nil {
		t.Fatal(err)
	}
	caller := root.calls["main.main"].calls["a/b.caller"]
	if root.spent != 60*time.Millisecond || caller.spent != 40*time.Millisecond ||
		caller.calls["a/b.(*T[go.shape.int]).leaf"].spent != 10*time.Millisecond ||
		root.calls["runtime.<root>"].spent != 20*time.Millisecond {
		t.Fatalf("%+v", root)
	}
	svg := string(draw("a & b", root))
	var any struct{}
	if err := xml.Unmarshal([]byte(svg), &any); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a &amp; b", "b.(*T[go.shape.int]).leaf", "a/b.caller: 66.7 %",
		"runtime.&lt;root&gt;"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s", want)
		}
	}
	if _, err := stacks([]byte("-----\n  lots   f\n")); err == nil {
		t.Error("an invalid duration is accepted")
	}
}
