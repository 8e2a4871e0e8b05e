package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/lowtide/relay"
	"lowtide/shared/bus"
	"lowtide/shared/store"
)

func natsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "nats", Short: "Make and rotate the users of a NATS of your own, and lowtide's streams in it",
		Long: "The steps of a deployment, in order (infra/README.md):\n\n" +
			"  lowtide nats bootstrap --dir DIR --fleet F    keys, one user a function, what servers include\n" +
			"  lowtide nats setup --nats URL --creds DIR/creds/admin.creds    streams and buckets\n" +
			"  lowtide nats rotate --dir DIR    new keys for all users; the old ones stay good\n" +
			"  lowtide nats revoke --dir DIR    ends the old ones, once the new ones are brought out",
	}
	cmd.AddCommand(bootstrapCommand(), setupCommand(), rotateCommand(), revokeCommand())
	return cmd
}

// deploymentUsers are all users of a fleet.
func deploymentUsers(fleet string, planAccounts []string) ([]accounts.User, error) {
	consumers, err := relay.Consumers(fleet, planAccounts)
	return accounts.All(fleet, consumers), err
}

func bootstrapCommand() *cobra.Command {
	var dir, fleet string
	var planAccounts []string
	cmd := &cobra.Command{
		Use: "bootstrap", Short: "Make the keys and users of a new deployment", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			users, err := deploymentUsers(fleet, planAccounts)
			if err != nil {
				return usage(err)
			}
			d, err := accounts.Bootstrap(dir, fleet, strings.ToLower(rand.Text()[:12]), users)
			if err != nil {
				return usage(err)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "installation %s (the template's parameter Install; it must never change)\n", d.Install())
			fmt.Fprintf(out, "servers include %s/%s\n", dir, accounts.ServerDoc)
			fmt.Fprintf(out, "keys in %s/keys are for whoever deploys alone; keep them where nothing runs\n", dir)
			bringOut(out, d, users)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "a directory of its own, for its owner alone")
	cmd.Flags().StringVar(&fleet, "fleet", "main", "the fleet's name")
	cmd.Flags().StringSliceVar(&planAccounts, "account", nil, "cloud/account whose plans the relay hands to provision; may be repeated")
	_ = cmd.MarkFlagRequired("dir")
	return cmd
}

// bringOut says where each user's credentials belong.
func bringOut(out io.Writer, d *accounts.Deployment, users []accounts.User) {
	for _, u := range users {
		switch u.Name {
		case "relay", "admin", "leaf":
			fmt.Fprintf(out, "%-10s %s\n", u.Name, d.Creds(u.Name))
		default:
			fmt.Fprintf(out, "%-10s aws secretsmanager create-secret --name lowtide/%s/%s --secret-string file://%s\n", u.Name, d.Fleet(), u.Name, d.Creds(u.Name))
		}
	}
}

func rotateCommand() *cobra.Command {
	var dir string
	var planAccounts []string
	cmd := &cobra.Command{
		Use: "rotate", Short: "Give all users new keys; the old ones stay good until revoke", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := accounts.Open(dir)
			if err != nil {
				return usage(err)
			}
			users, err := deploymentUsers(d.Fleet(), planAccounts)
			if err != nil {
				return usage(err)
			}
			if err := d.Rotate(users); err != nil {
				return usage(err)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, "new keys; put-secret-value for each function below, restart the relay, then: lowtide nats revoke")
			bringOut(out, d, users)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the deployment's directory")
	cmd.Flags().StringSliceVar(&planAccounts, "account", nil, "as with bootstrap")
	_ = cmd.MarkFlagRequired("dir")
	return cmd
}

func revokeCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "revoke", Short: "End the keys before the last rotation", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := accounts.Open(dir)
			if err == nil {
				err = d.Revoke(time.Now())
			}
			if err != nil {
				return usage(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "bring %s/%s to every server and reload it: nats-server --signal reload\n", dir, accounts.ServerDoc)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the deployment's directory")
	_ = cmd.MarkFlagRequired("dir")
	return cmd
}

func setupCommand() *cobra.Command {
	f := relayFlags{}
	var replicas int
	cmd := &cobra.Command{
		Use: "setup", Short: "Make lowtide's streams and buckets, or bring them up to date", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nc, err := f.connect()
			if err != nil {
				return usage(err)
			}
			defer nc.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Minute)
			defer cancel()
			if err := store.Guard(ctx, nc); err != nil {
				return nobody(err)
			}
			js, err := bus.JetStream(nc)
			if err == nil {
				err = bus.Setup(ctx, js, replicas)
			}
			values, objects := accounts.Buckets()
			for _, name := range values {
				_, oerr := store.Open(ctx, js, name, replicas)
				err = errors.Join(err, oerr)
			}
			for _, name := range objects {
				_, oerr := store.OpenObjects(ctx, js, name, replicas)
				err = errors.Join(err, oerr)
			}
			if err != nil {
				return nobody(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "streams and %d buckets are there, with %d replicas\n", len(values)+len(objects), replicas)
			return nil
		},
	}
	cmd.Flags().StringVar(&f.nats, "nats", os.Getenv("LOWTIDE_NATS_URL"), "where NATS is (LOWTIDE_NATS_URL)")
	cmd.Flags().StringVar(&f.creds, "creds", "", "file with the admin's credentials")
	cmd.Flags().StringVar(&f.ca, "ca", "", "file with certificates that may have signed the server's; empty: the system's")
	cmd.Flags().IntVar(&replicas, "replicas", 1, "1, or 3 on a cluster of three")
	_ = cmd.MarkFlagRequired("creds")
	return cmd
}
