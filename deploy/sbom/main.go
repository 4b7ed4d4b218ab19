// Command sbom writes a CycloneDX bill of materials of a Go program: the modules that the linker put into it, with
// versions and checksums. It reads the program itself, so the list describes the program, not the source tree.
//
//	go run ./deploy/sbom PROGRAM VERSION > PROGRAM.cdx.json
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM VERSION")
		os.Exit(2)
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err == nil {
		err = write(os.Stdout, info, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// component is a part of the program in CycloneDX form.
type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// write writes the bill of materials of a program of that version.
func write(w io.Writer, info *debug.BuildInfo, version string) error {
	parts := []component{
		{Type: "library", Name: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go"),
			PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := component{Type: "library", Name: m.Path, Version: m.Version,
			PURL: "pkg:golang/" + m.Path + "@" + m.Version}
		// A module's checksum covers the list of its files, not an archive.
		if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return fmt.Errorf("%s: %w", m.Path, err)
			}
			c.Properties = []property{{"go:sum:h1:sha256", hex.EncodeToString(raw)}}
		}
		parts = append(parts, c)
	}
	main := component{Type: "application", Name: info.Path, Version: version}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "GOAMD64" || s.Key == "CGO_ENABLED" ||
			s.Key == "vcs.revision" {
			main.Properties = append(main.Properties, property{"go:build:" + s.Key, s.Value})
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(struct {
		Format     string `json:"bomFormat"`
		Spec       string `json:"specVersion"`
		Version    int    `json:"version"`
		Metadata   any    `json:"metadata"`
		Components any    `json:"components"`
	}{"CycloneDX", "1.5", 1, map[string]any{"component": main}, parts})
}
