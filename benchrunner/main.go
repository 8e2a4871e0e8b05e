// Command benchrunner measures the accelerators of one machine and judges them. See package cli for its flags and exit
// codes, and package suite for what a verdict means.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"lowtide/benchrunner/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := cli.Command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchrunner:", err)
	}
	os.Exit(cli.Code(err))
}
