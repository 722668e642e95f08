package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sirupsen/logrus"
)

const (
	defaultBudget = 20 * time.Second
	minimumBudget = time.Second // the least that one leg is granted

	// settleTime is what a worker that stops needs after its last operation is over, to write the rows.
	settleTime = 10 * time.Second
	// shutdownSlack stands on top of the budget where nobody chose a shutdown timeout.
	shutdownSlack = 15 * time.Second

	maxConcurrency = 10000

	// MaxRetentionDays is the most that [Config.RetentionDays] may be: a century.
	MaxRetentionDays = 36500
)

// Setting is one environment variable.
type Setting struct {
	Name    string
	Default string // as it would be written; empty when there is none
	Meaning string // a sentence or two for an operator

	// read takes the value, or the default in its place, into the configuration. Its error goes on from the name.
	read func(c *Config, value string) error
	// also is where the value is looked for when Name is not set, or to nothing.
	also string
	// noticesEmpty: a value that is set to nothing is not the same as one that is not set.
	noticesEmpty bool
}

// Settings lists every setting there is, for help texts.
func Settings() []Setting { return append([]Setting(nil), settings...) }

const (
	databaseURL          = "LEGWORK_DATABASE_URL"
	redisURL             = "LEGWORK_REDIS_URL"
	operationTimeout     = "LEGWORK_MCP_OPERATION_TIMEOUT"
	concurrency          = "LEGWORK_CONCURRENCY"
	logLevel             = "LEGWORK_LOG_LEVEL"
	logFormat            = "LEGWORK_LOG_FORMAT"
	allowPrivateNetworks = "LEGWORK_ALLOW_PRIVATE_NETWORKS"
	allowedHosts         = "LEGWORK_ALLOWED_HOSTS"
	shutdownTimeout      = "LEGWORK_SHUTDOWN_TIMEOUT"
	retentionDays        = "LEGWORK_RETENTION_DAYS"
	httpAddr             = "LEGWORK_HTTP_ADDR"
	httpsProxy           = "HTTPS_PROXY"
	httpProxy            = "HTTP_PROXY"
	noProxy              = "NO_PROXY"
)

var settings = []Setting{
	{
		Name:    databaseURL,
		Meaning: "Postgres 14 or newer: postgres://USER:PASSWORD@HOST:PORT/DATABASE, or key=value pairs. Required.",
		read:    readDatabaseURL,
	},
	{
		Name:    redisURL,
		Default: "redis://127.0.0.1:6379/0",
		Meaning: "Redis 6.2 or newer: redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for TLS, redis-socket:///PATH?db=DB, " +
			"redis-sentinel://HOST,HOST/DB?master=NAME or redis-cluster://HOST,HOST; rediss-sentinel:// and rediss-cluster:// for TLS. " +
			"A user and password in a sentinel URL are the sentinels'; those of the Redis behind them are ?username= and &password=.",
		read: func(c *Config, value string) (err error) {
			c.Redis, err = parseRedisURL(value)
			return err
		},
	},
	{
		Name:    operationTimeout,
		Default: "20",
		Meaning: "The budget of one operation, in seconds: everything that one tool call, import or ping may take. At least 1, with no upper bound.",
		read:    readOperationTimeout, noticesEmpty: true,
	},
	{
		Name:    concurrency,
		Default: "40",
		Meaning: "How many jobs a worker runs at once, from 1 to 10000.",
		read: func(c *Config, value string) error {
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxConcurrency {
				return fmt.Errorf("is %q: it must be a whole number from 1 to %d", value, maxConcurrency)
			}
			c.Concurrency = n
			return nil
		},
	},
	{
		Name:    logLevel,
		Default: "info",
		Meaning: "What is logged at least: error, warn, info, debug or trace.",
		read: func(c *Config, value string) (err error) {
			c.LogLevel, err = logrus.ParseLevel(value)
			if err != nil || c.LogLevel < logrus.ErrorLevel {
				return fmt.Errorf("is %q: it must be error, warn, info, debug or trace", value)
			}
			return nil
		},
	},
	{
		Name:    logFormat,
		Default: FormatText,
		Meaning: "The form of a log line: text or json.",
		read: func(c *Config, value string) error {
			c.LogFormat = strings.ToLower(value)
			if c.LogFormat != FormatText && c.LogFormat != FormatJSON {
				return fmt.Errorf("is %q: it must be text or json", value)
			}
			return nil
		},
	},
	{
		Name:    allowPrivateNetworks,
		Default: "false",
		Meaning: "Whether MCP servers may be on loopback, private and unique local addresses: true or false.",
		read: func(c *Config, value string) (err error) {
			c.AllowPrivateNetworks, err = strconv.ParseBool(strings.ToLower(value))
			if err != nil {
				return fmt.Errorf("is %q: it must be true or false", value)
			}
			return nil
		},
	},
	{
		Name: allowedHosts,
		Meaning: "MCP servers that may be asked wherever they are, separated by commas: host names, *.suffix, addresses, " +
			"or prefixes such as 10.1.0.0/16.",
		read: readAllowedHosts,
	},
	{
		Name: shutdownTimeout,
		Meaning: "How long asynq gives the jobs that run, once a worker was told to stop, before it puts their tasks back into " +
			"the queue; in seconds or as 1m30s. The worker itself ends when its last operation has, so allow for the longest " +
			"budget of any server. At least this installation's budget and 10 seconds; unless it is set, that budget and 15 seconds.",
		read: readShutdownTimeout,
	},
	{
		Name:    retentionDays,
		Default: "0",
		Meaning: "After how many whole days a worker removes steps, runs and import errors that have ended; 0 keeps them for good. " +
			"\"legwork prune\" removes them at once.",
		read: func(c *Config, value string) error {
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n > MaxRetentionDays {
				return fmt.Errorf("is %q: it must be a whole number of days from 1 to %d, or 0 to keep everything", value, MaxRetentionDays)
			}
			c.RetentionDays = n
			return nil
		},
	},
	{
		Name: httpAddr,
		Meaning: "Where a worker answers /healthz, /readyz and /metrics, without a login: 127.0.0.1:9090, or :9090 for every " +
			"address of the machine. Nowhere unless it is set.",
		read: readHTTPAddr,
	},
	{
		Name: httpsProxy, also: "https_proxy",
		Meaning: "The proxy on the way to MCP servers with https URLs, such as http://proxy.example.com:3128. Loopback is never asked through a proxy.",
		read:    func(c *Config, value string) error { return readProxy(&c.Proxy.HTTPSProxy, value) },
	},
	{
		Name: httpProxy, also: "http_proxy",
		Meaning: "The same for http URLs.",
		read:    func(c *Config, value string) error { return readProxy(&c.Proxy.HTTPProxy, value) },
	},
	{
		Name: noProxy, also: "no_proxy",
		Meaning: "What is asked without the proxy, separated by commas: host names with all names under them, addresses, prefixes, or *.",
		read: func(c *Config, value string) error {
			c.Proxy.NoProxy = value
			return nil
		},
	},
}

// relate checks settings against each other and fills in the default that hangs on another setting.
func (c *Config) relate() error {
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, add(c.OperationTimeout, shutdownSlack))
	least := add(c.OperationTimeout, settleTime)
	switch {
	case c.ShutdownTimeout >= least:
		return nil
	case least == math.MaxInt64:
		return fmt.Errorf("%s is %s, but an operation may take without end (%s): leave %s unset",
			shutdownTimeout, inWords(c.ShutdownTimeout), operationTimeout, shutdownTimeout)
	}
	return fmt.Errorf("%s is %s, but an operation may take %s (%s) and %s are needed to settle it: set %s to %.0f or more",
		shutdownTimeout, inWords(c.ShutdownTimeout), inWords(c.OperationTimeout), operationTimeout, inWords(settleTime),
		shutdownTimeout, math.Ceil(least.Seconds()))
}

// inWords is a duration as every sentence has it: 20 s.
func inWords(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s" }

func readDatabaseURL(c *Config, value string) error {
	const form = "write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE"
	if value == "" {
		return errors.New("is not set: " + form)
	}
	isURL := strings.HasPrefix(value, "postgres://") || strings.HasPrefix(value, "postgresql://")
	if scheme, _, found := strings.Cut(value, "://"); found && !isURL && !strings.ContainsAny(scheme, "= ") {
		return fmt.Errorf("has the scheme %q: %s", scheme, form)
	}
	parsed, err := pgxpool.ParseConfig(value)
	if err != nil {
		return fmt.Errorf("cannot be used: %s", withoutURL(err))
	}
	// An @ in a password that is not encoded ends it too early, and the rest of it would be shown as the host.
	if strings.Contains(parsed.ConnConfig.Host, "@") {
		return errors.New("has an @ in the place of its host: percent-encode special characters in its user name and password (@ is %40)")
	}
	c.DatabaseURL = value
	return nil
}

// withoutURL tells why pgx cannot use a connection string, without repeating the string or, where it could not even be
// taken apart, any piece of it: every piece may be a password.
func withoutURL(err error) string {
	var bad *pgconn.ParseConfigError
	if !errors.As(err, &bad) {
		return err.Error() // pool_max_conns and its like
	}
	_, why, found := strings.Cut(bad.Error(), "`: ")
	if !found || strings.HasPrefix(why, "failed to parse as ") {
		return "it is neither a postgres:// URL nor key=value pairs; special characters in a user name or password must be " +
			"percent-encoded in a URL and quoted in a pair"
	}
	return why
}

// readOperationTimeout never fails: a bad number is replaced, and a warning says so.
func readOperationTimeout(c *Config, value string) error {
	warn := func(format string, args ...any) {
		c.Warnings = append(c.Warnings, operationTimeout+" is "+fmt.Sprintf(format, args...))
	}
	c.OperationTimeout = defaultBudget
	seconds, err := parseSeconds(value)
	switch {
	case value == "":
		warn("set to nothing: %s are used", inWords(defaultBudget))
	case err != nil && isDuration(value):
		warn("%q, which has a unit: write plain seconds without one; %s are used", value, inWords(defaultBudget))
	case err != nil:
		warn("%q, which is not a number of seconds: %s are used", value, inWords(defaultBudget))
	case seconds <= 0:
		warn("%q, which is no time at all: %s are used", value, inWords(defaultBudget))
	case seconds < minimumBudget.Seconds():
		c.OperationTimeout = minimumBudget
		warn("%q, which is less than the %s that a single request is granted: %s is used", value, inWords(minimumBudget), inWords(minimumBudget))
	default:
		c.OperationTimeout = inSeconds(seconds)
	}
	return nil
}

func readShutdownTimeout(c *Config, value string) error {
	if value == "" {
		return nil
	}
	if seconds, err := parseSeconds(value); err == nil && seconds > 0 {
		c.ShutdownTimeout = inSeconds(seconds)
	} else if d, err := time.ParseDuration(value); err == nil && d > 0 {
		c.ShutdownTimeout = d
	}
	// Less than a nanosecond is no time either.
	if c.ShutdownTimeout <= 0 {
		return fmt.Errorf("is %q: it must be a number of seconds above zero, or a duration such as 1m30s", value)
	}
	return nil
}

// parseSeconds reads a number, of any size: what is too large for a float64 is infinite.
func parseSeconds(value string) (float64, error) {
	seconds, err := strconv.ParseFloat(value, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil
	}
	if err == nil && math.IsNaN(seconds) {
		err = strconv.ErrSyntax
	}
	return seconds, err
}

// inSeconds is a duration of so many seconds, or the largest one: some 292 years.
func inSeconds(seconds float64) time.Duration {
	if seconds >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(seconds * float64(time.Second))
}

func isDuration(value string) bool {
	_, err := time.ParseDuration(value)
	return err == nil
}

// readProxy takes the address of a proxy. It may hold a password, so no error repeats it.
func readProxy(into *string, value string) error {
	if value == "" {
		return nil
	}
	address := value
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return errors.New("is not the address of a proxy: write http://HOST:PORT, where https, socks5 and socks5h may stand for http")
	}
	*into = address
	return nil
}

// readHTTPAddr takes an address to listen at. Whether it is this machine's, and free, shows when it is used.
func readHTTPAddr(c *Config, value string) error {
	if value == "" {
		return nil
	}
	const form = "write HOST:PORT such as 127.0.0.1:9090, or :9090 for every address of this machine"
	host, port, err := net.SplitHostPort(value)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		return fmt.Errorf("is %q: %s", value, form)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("is %q, whose port is not a number up to 65535: %s", value, form)
	} else if n == 0 {
		return fmt.Errorf("is %q, whose port nobody would know: %s", value, form)
	}
	c.HTTPAddress = value
	return nil
}

func readAllowedHosts(c *Config, value string) error {
	var bad []string
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		switch {
		case entry == "":
		case isHost(entry):
			c.AllowedHosts = append(c.AllowedHosts, entry)
		default:
			bad = append(bad, strconv.Quote(entry))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("has %s: write a host name, *.suffix, an address, or a prefix such as 10.1.0.0/16, without a scheme, port or path",
			strings.Join(bad, ", "))
	}
	return nil
}

// isHost tells what the host gate can make sense of.
func isHost(entry string) bool {
	if _, err := netip.ParsePrefix(entry); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		return true
	}
	name := strings.TrimPrefix(strings.TrimSuffix(entry, "."), "*.")
	return name != "" && !strings.ContainsAny(name, "*/:@ ")
}
