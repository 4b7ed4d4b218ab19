package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/browser"
)

// TestDemoPage: the demonstration's page shows its three streams, each with truth and releases, and reports no problem.
// With STREAMDP_PICTURES=FOLDER it continues until the coefficients have jumped, about two and a half minutes, and
// saves a picture of the page.
func TestDemoPage(t *testing.T) {
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	folder := os.Getenv("STREAMDP_PICTURES")
	wait := patience
	if folder != "" {
		wait += 3 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c := program(ctx, "demo")
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	}()
	lines := bufio.NewScanner(pipe)
	lines.Scan()
	url, ok := strings.CutPrefix(lines.Text(), "the page is at ")
	if !ok {
		t.Fatalf("the demonstration says %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
		}
	}()
	p := browser.Open(t, path)
	p.Size(1280, 900)
	p.Go(url)
	p.Until(ctx, "moments and regression with the truth",
		`document.querySelectorAll("#s-demo-merged .chart .truth").length === 9 && document.querySelectorAll("#s-regression-0 .coef td").length >= 12 && document.querySelectorAll("article").length === 3`)
	p.Until(ctx, "that it is live",
		`document.title === "streamdp: 3 running" && document.getElementById("live").innerText === "live"`)
	if folder != "" {
		p.Until(ctx, "seven refits", `document.querySelector("#s-refit-0 dl").innerText.includes("step\n7")`)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{1280, 768, 390} {
				p.Prefers("prefers-color-scheme", scheme)
				p.Size(width, 900)
				time.Sleep(500 * time.Millisecond)
				p.Picture(filepath.Join(folder, fmt.Sprintf("page-%s-%d.png", scheme, width)), 0)
			}
		}
		p.Prefers("prefers-color-scheme", "light")
		p.Size(1200, 900)
		time.Sleep(500 * time.Millisecond)
		p.Picture(filepath.Join(folder, "page.png"), 1250)
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
}

// TestDemoPagePersons: the page of the demonstration of persons explains what a person is, shows the mean of the
// counted records, and reports no problem.
func TestDemoPagePersons(t *testing.T) {
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := program(ctx, "demo", "--persons", "--insecure-seed", "1")
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	}()
	lines := bufio.NewScanner(pipe)
	lines.Scan()
	url, ok := strings.CutPrefix(lines.Text(), "the page is at ")
	if !ok {
		t.Fatalf("the demonstration says %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
		}
	}()
	p := browser.Open(t, path)
	p.Size(360, 900)
	p.Go(url)
	says := func(id, text string) string {
		return fmt.Sprintf(`document.querySelector("#s-%s-0").innerText.includes(%q)`, id, text)
	}
	p.Until(ctx, "who is a person",
		says("persons", "for a person with all records")+" && "+says("persons", "11 steps")+" && "+
			says("persons", "person of the population persons"))
	p.Until(ctx, "the mean of the records that count",
		`document.querySelector("#s-persons-0 select").value === "mean_counted_original" && `+
			says("persons", "count for their person")+" && "+says("persons", "not counted: over-cap"))
	p.Until(ctx, "the statement for a record", says("records", "for one record")+` && !`+says("records", "person"))
	var wide int
	if p.Eval("document.documentElement.scrollWidth", &wide); wide > 360 {
		t.Errorf("at 360 pixels the page is %d wide", wide)
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
}
