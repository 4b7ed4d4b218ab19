package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages, one for each command",
		Long: "Write the manual pages, one for each command, into a directory. To read one: man\n" +
			"-l DIR/streamdp.1. The Debian package contains them. SOURCE_DATE_EPOCH sets\n" +
			"their date.",
		Args: needs("DIRECTORY"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := c.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root,
				&doc.GenManHeader{Section: "1", Source: "streamdp " + version(), Manual: "streamdp"}, args[0])
		},
	}
}
