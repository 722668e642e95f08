// Command bench measures what legwork costs, beside the least that the same work can cost and beside what others do.
//
//	go run ./internal/bench [-rounds N] [-short] [-large] [-profile FILE] [figure…]
//
// docs/performance.md says what each figure means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"legwork/internal/scratch"
)

// figure is one thing that is measured.
type figure struct {
	name, what string
	measure    func(context.Context, *bench) error
}

var figures = []figure{
	{"call3", "one tool call in three legs", call3},
	{"call1", "one tool call in one leg", call1},
	{"call64k", "a tool call with a result of 64 KiB", call64k},
	{"held", "what an operation holds while its server is silent", held},
	{"late", "how late the error is when time is up", late},
	{"steps", "steps through the whole worker", steps},
	{"start", "from enqueueing to the start on an idle worker", start},
	{"import", "the import of 500 tools", importing},
	{"growth", "how the rows' number tells", growth},
}

// settings say how thoroughly to measure.
type settings struct {
	rounds int
	short  bool // one round and small numbers: whether a figure works, not what it is
	large  bool // growth: 5 million rows too
	// profile is the file for a CPU profile of this process; empty is none.
	profile string
}

// bench is one run of the program.
type bench struct {
	settings
	out     io.Writer
	stub    *stubProcess
	verdict []verdict
}

// pick is the number for this run: few when it is short.
func (s settings) pick(full, few int) int {
	if s.short {
		return few
	}
	return full
}

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.rounds, "rounds", 7, "alternating `rounds` of each figure")
	flags.BoolVar(&s.short, "short", false, "one round and small numbers, to see whether the figures work")
	flags.BoolVar(&s.large, "large", false, "growth: measure at 5 million rows too")
	flags.StringVar(&s.profile, "profile", "", "write a CPU profile of this process, without the stub server and the workers, to `file`")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: bench [-rounds N] [-short] [-large] [-profile file] [figure…]\n\nfigures:")
		for _, f := range figures {
			fmt.Fprintf(flags.Output(), "  %-9s %s\n", f.name, f.what)
		}
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if s.rounds < 1 {
		return fmt.Errorf("-rounds is %d: it must be at least 1", s.rounds)
	}
	if s.short {
		s.rounds = 1
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}
	if s.profile != "" {
		file, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	_, err = measure(ctx, out, s, chosen)
	return err
}

func choose(names []string) ([]figure, error) {
	if len(names) == 0 {
		return figures, nil
	}
	var chosen []figure
	for _, name := range names {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no figure %q: see -help", name)
		}
		chosen = append(chosen, figures[i])
	}
	return chosen, nil
}

// measure takes the figures one after the other and says at the end which bounds were kept.
func measure(ctx context.Context, out io.Writer, s settings, chosen []figure) ([]verdict, error) {
	stub, err := startStub(ctx)
	if err != nil {
		return nil, err
	}
	defer stub.stop()
	b := &bench{settings: s, out: out, stub: stub}
	fmt.Fprintf(out, "%s, %s/%s, %d cores; %d rounds; spreads are the least and the most of the rounds\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), s.rounds)
	for _, f := range chosen {
		fmt.Fprintf(out, "\n%s: %s\n", f.name, f.what)
		if err := f.measure(ctx, b); err != nil {
			return b.verdict, fmt.Errorf("figure %s: %w", f.name, err)
		}
		if err := ctx.Err(); err != nil {
			return b.verdict, err
		}
	}
	over := 0
	for _, v := range b.verdict {
		if v.bounded && !v.kept {
			over++
		}
	}
	fmt.Fprintf(out, "\n%d bounds, %d over\n", len(slices.DeleteFunc(slices.Clone(b.verdict), func(v verdict) bool { return !v.bounded })), over)
	return b.verdict, nil
}

// startServers starts the Postgres and the Redis that a figure needs, which keep their promises through a crash, and says
// what they are.
func (b *bench) startServers(ctx context.Context, withRedis bool) (*scratch.Postgres, *scratch.Redis, func(), error) {
	programs := []scratch.Program{scratch.PostgresProgram}
	if withRedis {
		programs = append(programs, scratch.RedisProgram)
	}
	if err := scratch.Ensure(ctx, os.Stderr, programs...); err != nil {
		return nil, nil, nil, err
	}
	postgres, err := scratch.StartPostgres(ctx, scratch.Durable)
	if err != nil {
		return nil, nil, nil, err
	}
	about, err := describePostgres(ctx, postgres.URL)
	if err != nil {
		postgres.Stop()
		return nil, nil, nil, err
	}
	stop := func() { postgres.Stop() }
	var server *scratch.Redis
	if withRedis {
		if server, err = scratch.StartRedis(ctx, scratch.Durable); err != nil {
			stop()
			return nil, nil, nil, err
		}
		stop = func() { server.Stop(); postgres.Stop() }
		line, err := describeRedis(ctx, server.URL)
		if err != nil {
			stop()
			return nil, nil, nil, err
		}
		about += "; " + line
	}
	fmt.Fprintln(b.out, "  "+about)
	return postgres, server, stop, nil
}

func describePostgres(ctx context.Context, url string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var about []string
	for _, name := range []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_sync_method"} {
		var value string
		if err := conn.QueryRow(ctx, "select current_setting($1)", name).Scan(&value); err != nil {
			return "", err
		}
		about = append(about, name+" "+value)
	}
	return "Postgres: " + strings.Join(about, ", "), nil
}

func describeRedis(ctx context.Context, url string) (string, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return "", err
	}
	client := redis.NewClient(options)
	defer client.Close()
	info, err := client.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	about := []string{info["Server"]["redis_version"]}
	for _, name := range []string{"appendonly", "appendfsync", "save", "maxmemory-policy"} {
		values, err := client.ConfigGet(ctx, name).Result()
		if err != nil {
			return "", err
		}
		about = append(about, fmt.Sprintf("%s %q", name, values[name]))
	}
	return "Redis: " + strings.Join(about, ", "), nil
}
