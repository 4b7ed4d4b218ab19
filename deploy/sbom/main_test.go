package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"runtime/debug"
	"testing"
)

// TestWrite: every linked module is listed once with its checksum; a replaced module is listed as its replacement.
func TestWrite(t *testing.T) {
	const sum = "h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0", Path: "github.com/streamdp/streamdp/cmd/streamdp",
		Main: debug.Module{Path: "github.com/streamdp/streamdp", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.0.0", Sum: sum},
			{Path: "example.com/b", Version: "v1.0.0", Sum: sum,
				Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0", Sum: sum}},
		},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}, {Key: "-ldflags", Value: "-s"}},
	}
	var b bytes.Buffer
	if err := write(&b, info, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	var got struct {
		BOMFormat, SpecVersion string
		Metadata               struct{ Component component }
		Components             []component
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	m := got.Metadata.Component
	if got.BOMFormat != "CycloneDX" || m.Version != "v1.2.3" || len(m.Properties) != 1 ||
		m.Properties[0].Value != "arm64" {
		t.Errorf("%+v", got)
	}
	var list []string
	for _, c := range got.Components {
		list = append(list, c.PURL)
		if c.Name != "stdlib" &&
			(len(c.Properties) != 1 || !regexp.MustCompile(`^0{64}$`).MatchString(c.Properties[0].Value)) {
			t.Errorf("%+v", c)
		}
	}
	if len(list) != 3 || list[0] != "pkg:golang/std@1.26.0" || list[1] != "pkg:golang/example.com/a@v1.0.0" ||
		list[2] != "pkg:golang/example.com/c@v2.0.0" {
		t.Errorf("%v", list)
	}
	info.Deps[0].Sum = "h1:?"
	if err := write(&b, info, "v1.2.3"); err == nil {
		t.Error("an invalid checksum is accepted")
	}
}
