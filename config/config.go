// Package config turns the environment into settings. Every setting, its default and its rule stand in one table; [Load]
// reports everything that is wrong in one answer.
package config

import (
	"math"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"
	"golang.org/x/net/http/httpproxy"
)

// Config is what an installation has chosen. It holds passwords: it is not for printing.
type Config struct {
	DatabaseURL          string             // as pgx reads it: a postgres:// URL or key=value pairs
	Redis                asynq.RedisConnOpt // one server, one behind sentinels, or a cluster
	OperationTimeout     time.Duration      // the installation's budget for one operation; at least a second, with no upper bound
	Concurrency          int                // jobs that a worker runs at once
	LogLevel             logrus.Level
	LogFormat            string           // FormatText or FormatJSON
	AllowPrivateNetworks bool             // whether MCP servers may be on loopback and private addresses
	AllowedHosts         []string         // MCP servers that may be asked wherever they are
	Proxy                httpproxy.Config // on the way to MCP servers
	ShutdownTimeout      time.Duration    // what asynq gives running jobs before it puts their tasks back into the queue
	HTTPAddress          string           // where a worker answers probes and scrapes, as host:port; empty: nowhere
	RetentionDays        int              // after how many days ended steps, runs and import errors are removed; 0: never

	// Warnings are settings that were bad and could be replaced, one sentence each. Whoever uses the configuration shows them.
	Warnings []string
}

// The formats of the log.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Error lists everything that is wrong with the settings, one sentence for each. No sentence holds a secret.
type Error struct {
	Problems []string
	Warnings []string // as [Config.Warnings]: who mends the problems can mend these along with them
}

// Error has one line for each problem; warnings are not among them.
func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }

// Load reads the settings through lookup, which is [os.LookupEnv] outside of tests: a number that is set to nothing is a
// mistake worth a warning, and only LookupEnv tells it from one that is not set. The error is an [*Error].
func Load(lookup func(string) (string, bool)) (Config, error) {
	var (
		config   Config
		problems []string
		bad      = map[string]bool{} // settings that could not be read
	)
	for _, s := range settings {
		value, set := lookup(s.Name)
		if strings.TrimSpace(value) == "" && s.also != "" {
			value, set = lookup(s.also)
		}
		value = strings.TrimSpace(value)
		if value == "" && (!set || !s.noticesEmpty) {
			value = s.Default
		}
		if err := s.read(&config, value); err != nil {
			problems = append(problems, s.Name+" "+err.Error())
			bad[s.Name] = true
		}
	}
	// The budget always has a value: a bad one is replaced.
	if !bad[shutdownTimeout] {
		if err := config.relate(); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) > 0 {
		return Config{}, &Error{Problems: problems, Warnings: config.Warnings}
	}
	return config, nil
}

// add is a sum of durations that stops at the largest one: a budget may be as large as that.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
