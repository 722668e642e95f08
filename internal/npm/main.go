package npm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// totalTime bounds a whole check, installation included.
const totalTime = 15 * time.Minute

// Main is the main function of a check of this name: it hands the command line to run, ends it on Ctrl-C, SIGTERM or after
// totalTime, and exits with 1 when it fails.
func Main(name string, run func(ctx context.Context, out io.Writer, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, totalTime, fmt.Errorf("it was not done after %s", totalTime))
	err := run(ctx, os.Stdout, os.Args[1:])
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}
