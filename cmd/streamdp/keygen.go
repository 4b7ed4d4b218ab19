package main

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/credentials"
)

func keygenCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Write a new master key to a file that does not exist",
		Long: "Write a new master key, 32 random bytes in hexadecimal, to FILE with mode 0600,\n" +
			"and print its id. Anyone who has the key and an epoch's secret can remove the\n" +
			"noise from every release of the epoch. Keep the key out of backups that contain\n" +
			"releases.",
		Args: needs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			secret := dp.NewSecret()
			defer clear(secret[:])
			id, err := credentials.GenerateKey(args[0], bytes.NewReader(secret[:]))
			if err != nil {
				return err
			}
			fmt.Fprintf(g.stdout, "key %s written to %s\n", id, args[0])
			return nil
		},
	}
}
