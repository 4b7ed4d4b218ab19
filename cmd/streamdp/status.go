package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"streamdp/stream"
)

func statusCommand(g *globals) *cobra.Command {
	var url string
	c := &cobra.Command{
		Use:   "status [-c FILE | --url URL]",
		Short: "Show what a running daemon does",
		RunE: func(c *cobra.Command, _ []string) error {
			if url == "" {
				url = "http://127.0.0.1:9464"
				if g.config != "" {
					cfg, err := g.load()
					if err != nil {
						return err
					}
					url = "http://" + cfg.HTTP.Listen
					if strings.HasPrefix(cfg.HTTP.Listen, ":") {
						url = "http://127.0.0.1" + cfg.HTTP.Listen
					}
				}
			}
			if !strings.Contains(url, "://") {
				url = "http://" + url
			}
			req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, strings.TrimSuffix(url, "/")+"/api/v1/status", nil)
			if err != nil {
				return usageError{err}
			}
			res, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
			if err != nil {
				return fmt.Errorf("no daemon answers: %w", err)
			}
			defer res.Body.Close()
			var answer struct {
				Status string
				Data   json.RawMessage
			}
			if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Status != "success" {
				return fmt.Errorf("%s answered %s, not a status", url, res.Status)
			}
			if g.json {
				fmt.Fprintf(g.stdout, "%s\n", answer.Data)
				return nil
			}
			var data struct{ Tasks []stream.TaskStatus }
			if err := json.Unmarshal(answer.Data, &data); err != nil {
				return err
			}
			return printStatus(g, data.Tasks)
		},
	}
	c.Flags().StringVar(&url, "url", "", "the daemon's HTTP address (default: http.listen of the configuration, else http://127.0.0.1:9464)")
	return c
}

func printStatus(g *globals, tasks []stream.TaskStatus) error {
	w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tSTATE\tEPOCH\tSTEP\tOFFSET\tLAG\tOUTBOX\tEPSILON\tCHARGED\tLIMIT")
	for _, t := range tasks {
		step := fmt.Sprint(t.Step)
		if t.Horizon > 0 {
			step += fmt.Sprintf("/%d", t.Horizon)
		}
		fmt.Fprintf(w, "%s-%d\t%s\t%d\t%s\t%d\t%d\t%d\t%g\t%s\t%g\n", t.Stream, t.Partition, t.State, t.Epoch, step, t.NextOffset, t.Lag, t.Outbox,
			t.Epsilon, stream.AtMost(t.ChargedEpsilon), t.LimitEpsilon)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range tasks {
		if t.Message != "" {
			fmt.Fprintf(g.stdout, "\n%s-%d: %s\n", t.Stream, t.Partition, t.Message)
		}
	}
	return nil
}
