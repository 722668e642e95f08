// Command legwork is the worker, and what an operator needs around it: the schema, the servers and their catalogues, calls,
// and the rows that tell how they went.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal asks; a second one ends the program at once
	redis.SetLogger(silence{})   // it would write a line for each connection it cannot make; commands return errors, and the worker logs them
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv))
}

// silence is a logger of go-redis that says nothing.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
