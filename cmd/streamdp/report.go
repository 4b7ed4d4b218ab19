package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/statement"
	"github.com/streamdp/streamdp/stream/ledger"
)

func reportCommand(g *globals) *cobra.Command {
	var output string
	var quick bool
	c := &cobra.Command{
		Use:   "report -c FILE",
		Short: "Write a report for signature: guarantee, charges and audits of each stream",
		Long: "Write one self-contained HTML page for printing: the guarantee in plain words\n" +
			"with an example, who is protected with how many records, every charge and every\n" +
			"change of a limit with its time, all epochs, the audits with level and power,\n" +
			"the configuration's digest, what is not promised, a glossary, and a line to\n" +
			"sign.\n\n" +
			"The command reads the configuration and the ledger and runs the audits, which\n" +
			"takes some seconds. It reads no record and no key. If an audit fails, the report\n" +
			"says so and the exit code is 1.",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := g.statement(c.Context(), quick)
			if err != nil {
				return err
			}
			if err := g.writeReport(r, output); err != nil {
				return err
			}
			if output != "" {
				fmt.Fprintf(g.stderr, "wrote the report to %s\n", output)
			}
			if !r.Passed {
				return errors.New("an audit failed: do not run this build, and do not sign the report")
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().BoolVar(&quick, "quick", false, "run the audits with fewer draws")
	return c
}

// statement gathers the contents of the report.
func (g *globals) statement(ctx context.Context, quick bool) (*statement.Statement, error) {
	cfg, err := g.load()
	if err != nil {
		return nil, err
	}
	return statement.New(cfg, statement.Options{
		Configuration: g.config, Version: version(), Quick: quick,
		Books: func() (*ledger.Books, error) { return g.books(ctx, cfg) },
	})
}

// writeReport writes the page, or JSON, to a file or to standard output. The file appears under its name only once it
// is complete.
func (g *globals) writeReport(r *statement.Statement, path string) (err error) {
	if path == "" {
		return g.printReport(g.stdout, r)
	}
	f, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	if err = errors.Join(g.printReport(f, r), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

func (g *globals) printReport(w io.Writer, r *statement.Statement) error {
	if g.json {
		return r.JSON(w)
	}
	return r.HTML(w)
}
