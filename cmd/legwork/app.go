package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1 // the operation failed
	exitUsage  = 2 // wrong usage or settings
)

// checkTime is how long a command waits for Postgres or Redis to answer at all.
const checkTime = 10 * time.Second

// app is what every command works with.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
}

// run carries out one command line and returns the exit code. It ends early when ctx does; what that means is each
// command's own affair.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) int {
	silenceRedis()
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, lookupEnv: lookupEnv}
	root := newRootCommand(a)
	root.SetArgs(append([]string{}, args...)) // cobra takes os.Args for nil
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	return a.exit(command, err)
}

// silenceRedis keeps go-redis from writing to stderr on its own account: what it would say comes back as an error too.
var silenceRedis = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func newRootCommand(a *app) *cobra.Command {
	root := group("legwork", "carries out agent runs against MCP servers, with one time budget for each operation",
		newWorkerCommand(a),
		newHealthCommand(a),
		newDoctorCommand(a),
		newPruneCommand(a),
		newMigrateCommand(a),
		newServerCommand(a),
		newImportCommand(a),
		newImportErrorCommand(a),
		newToolCommand(a),
		newCallCommand(a),
		newStepCommand(a),
		newRunCommand(a),
		newDemoCommand(a),
		newConformanceCommand(a),
		newVersionCommand(a),
		newSettingsTopic(),
	)
	root.Long = "legwork carries out agent runs against remote MCP servers, with exactly one time budget for each operation, " +
		"and leaves rows in Postgres that tell what failed, whether the server was asked, and whose number ran out."
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.help(cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		a.usage(cmd)
		return nil
	})
	root.SetHelpCommand(&cobra.Command{
		Use: "help COMMAND", Short: "show how a command is used", RunE: func(help *cobra.Command, args []string) error {
			cmd, rest, err := help.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return unknownCommand(cmd, rest[0])
			}
			return cmd.Help()
		},
	})
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	return root
}

// group is a command that only holds others. Without one of them it is wrong usage, which cobra itself lets pass.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			cmd.SetOut(cmd.ErrOrStderr())
			if err := cmd.Help(); err != nil {
				return err
			}
			return errSaid{exitUsage}
		}
		return unknownCommand(cmd, args[0])
	}}
	g.AddCommand(commands...)
	return g
}

// unknownCommand says that there is no such command below cmd, and which one may have been meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	problem := fmt.Sprintf("%q is no command of %q", name, cmd.CommandPath())
	for cmd.SuggestionsMinimumDistance = 1; cmd.SuggestionsMinimumDistance <= 2; cmd.SuggestionsMinimumDistance++ {
		if near := cmd.SuggestionsFor(name); len(near) > 0 {
			problem += fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+near[0])
			break
		}
	}
	return usagef("%s", problem)
}

// usageError is wrong usage: the command line itself has to change.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// args makes a wrong number of arguments wrong usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) != nil {
			were := "arguments were"
			if len(args) == 1 {
				were = "argument was"
			}
			return usagef("%d %s given; the usage is %q", len(args), were, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}

// errSaid ends a command whose reader knows already what is wrong.
type errSaid struct{ code int }

func (e errSaid) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// sentence is an operator's sentence. It stands on stderr as it is.
type sentence string

func (s sentence) Error() string { return string(s) }

// exit says on stderr what is wrong and chooses the exit code.
func (a *app) exit(command *cobra.Command, err error) int {
	var (
		said     errSaid
		usage    usageError
		settings *config.Error
		plain    sentence
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &said):
		return said.code
	case errors.As(err, &usage):
		fmt.Fprintf(a.stderr, "legwork: %s\nRun %q for its usage.\n", err, command.CommandPath()+" --help")
		return exitUsage
	case errors.As(err, &settings):
		fmt.Fprintln(a.stderr, "legwork: the settings are not usable:")
		for _, problem := range settings.Problems {
			fmt.Fprintln(a.stderr, "  "+problem)
		}
		a.warn(settings.Warnings)
		fmt.Fprintln(a.stderr, `Run "legwork help settings" for what each may be.`)
		return exitUsage
	case errors.As(err, &plain):
		fmt.Fprintln(a.stderr, plain)
		return exitFailed
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(a.stderr, "legwork: "+line)
	}
	return exitFailed
}

// settings loads the settings and shows their warnings.
func (a *app) settings() (config.Config, error) {
	cfg, err := config.Load(a.lookupEnv)
	a.warn(cfg.Warnings)
	return cfg, err
}

func (a *app) warn(warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(a.stderr, "legwork: warning: "+warning)
	}
}

// withStore lends a store that was checked.
func (a *app) withStore(ctx context.Context, use func(config.Config, *store.Store) error) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	rows, err := store.Open(ctx, cfg.DatabaseURL, store.Options{})
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := checkStore(ctx, rows); err != nil {
		return err
	}
	return use(cfg, rows)
}

func checkStore(ctx context.Context, rows *store.Store) error {
	limited, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	err := rows.Check(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer from Postgres within %s: check LEGWORK_DATABASE_URL and the way there", duration(checkTime))
	}
	return err
}

// writeJSON prints a value for programs.
func (a *app) writeJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// hint tells on stderr what to do next; stdout stays clean for programs.
func (a *app) hint(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }

func jsonFlag(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVar(into, "json", false, "print JSON")
}

// noSuchServer puts a row that is not there into an operator's words.
func noSuchServer(err error, identifier string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("there is no server %q: \"legwork server list\" shows those there are", identifier)
	}
	return err
}
