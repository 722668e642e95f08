package config

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"
	"golang.org/x/net/http/httpproxy"
)

// lookup is an environment. The database URL is there unless the map says otherwise.
func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, set := env[name]
		if !set && name == databaseURL {
			return "postgres://legwork:pw@db/legwork", true
		}
		return value, set
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	got, err := Load(lookup(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		DatabaseURL:      "postgres://legwork:pw@db/legwork",
		Redis:            asynq.RedisClientOpt{Addr: "127.0.0.1:6379"},
		OperationTimeout: 20 * time.Second,
		Concurrency:      40,
		LogLevel:         logrus.InfoLevel,
		LogFormat:        FormatText,
		ShutdownTimeout:  35 * time.Second,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEverythingSet(t *testing.T) {
	t.Parallel()
	got, err := Load(lookup(map[string]string{
		databaseURL:          "host=/run/postgresql dbname=legwork password='a b'",
		redisURL:             "redis://worker:s%2Fcret@cache:6380/3",
		operationTimeout:     " 2.5 ",
		concurrency:          "200",
		logLevel:             "DEBUG",
		logFormat:            "json",
		allowPrivateNetworks: "True",
		allowedHosts:         "docs.internal, *.corp.example,10.1.0.0/16,,::1",
		shutdownTimeout:      "1m",
		retentionDays:        "30",
		httpAddr:             "127.0.0.1:9090",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		DatabaseURL:          "host=/run/postgresql dbname=legwork password='a b'",
		Redis:                asynq.RedisClientOpt{Addr: "cache:6380", Username: "worker", Password: "s/cret", DB: 3},
		OperationTimeout:     2500 * time.Millisecond,
		Concurrency:          200,
		LogLevel:             logrus.DebugLevel,
		LogFormat:            FormatJSON,
		AllowPrivateNetworks: true,
		AllowedHosts:         []string{"docs.internal", "*.corp.example", "10.1.0.0/16", "::1"},
		ShutdownTimeout:      time.Minute,
		RetentionDays:        30,
		HTTPAddress:          "127.0.0.1:9090",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOperationTimeout(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		value   string
		want    time.Duration
		warning string // a part of it; empty for none
	}{
		"a whole number":                 {"30", 30 * time.Second, ""},
		"a fraction":                     {"1.25", 1250 * time.Millisecond, ""},
		"the floor itself":               {"1", time.Second, ""},
		"set to nothing":                 {"", 20 * time.Second, "set to nothing: 20 s are used"},
		"only white space":               {"  ", 20 * time.Second, "set to nothing"},
		"a word":                         {"soon", 20 * time.Second, `"soon"`},
		"not a number by name":           {"NaN", 20 * time.Second, `"NaN"`},
		"a decimal comma":                {"2,5", 20 * time.Second, `"2,5"`},
		"a unit":                         {"20s", 20 * time.Second, `"20s", which has a unit: write plain seconds`},
		"zero":                           {"0", 20 * time.Second, `"0"`},
		"a unit and zero":                {"0s", 20 * time.Second, `"0s"`},
		"negative":                       {"-5", 20 * time.Second, `"-5"`},
		"negative without end":           {"-1e999", 20 * time.Second, `"-1e999"`},
		"smaller than any float":         {"1e-999", 20 * time.Second, `"1e-999"`},
		"below the floor":                {"0.2", time.Second, `"0.2", which is less than the 1 s that a single request is granted: 1 s is used`},
		"a year":                         {"31536000", 365 * 24 * time.Hour, ""},
		"longer than a duration":         {"1e10", math.MaxInt64, ""},
		"the last second of a duration":  {"9223372036", 9223372036 * time.Second, ""},
		"longer than the universe":       {"1e300", math.MaxInt64, ""},
		"longer than a float":            {"1e999", math.MaxInt64, ""},
		"infinite":                       {"+Inf", math.MaxInt64, ""},
		"a just too long for a duration": {"9223372037", math.MaxInt64, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Load(lookup(map[string]string{operationTimeout: test.value}))
			if err != nil {
				t.Fatal(err)
			}
			if got.OperationTimeout != test.want {
				t.Errorf("got %s, want %s", got.OperationTimeout, test.want)
			}
			warnings := strings.Join(got.Warnings, "\n")
			if (test.warning == "") != (warnings == "") || !strings.Contains(warnings, test.warning) {
				t.Errorf("warned %q, want %q in it", warnings, test.warning)
			}
			if warnings != "" && !strings.Contains(warnings, operationTimeout) {
				t.Errorf("the warning %q does not name the setting", warnings)
			}
			if got.ShutdownTimeout < got.OperationTimeout {
				t.Errorf("the shutdown timeout %s is less than the budget", got.ShutdownTimeout)
			}
		})
	}
}

func TestShutdownTimeout(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		budget, value string
		want          time.Duration // zero: refused
		says          []string
	}{
		"seconds":                       {"20", "45", 45 * time.Second, nil},
		"a fraction of a second":        {"20", "30.5", 30500 * time.Millisecond, nil},
		"a duration":                    {"20", "1m30s", 90 * time.Second, nil},
		"exactly enough":                {"20", "30", 30 * time.Second, nil},
		"one second short":              {"20", "29", 0, []string{"is 29 s", "20 s", operationTimeout, "10 s", "set " + shutdownTimeout + " to 30 or more"}},
		"less than a raised budget":     {"120", "45", 0, []string{"is 45 s", "120 s", "to 130 or more"}},
		"a fraction of a budget":        {"2.5", "12", 0, []string{"is 12 s", "2.5 s", "to 13 or more"}},
		"set to nothing":                {"60", "", 75 * time.Second, nil},
		"a budget without end":          {"1e300", "", math.MaxInt64, nil},
		"a budget without end, limited": {"1e300", "3600", 0, []string{"is 3600 s", "leave " + shutdownTimeout + " unset"}},
		"both without end":              {"1e300", "1e300", math.MaxInt64, nil},
		"a word":                        {"20", "later", 0, []string{`"later"`, "1m30s"}},
		"zero":                          {"20", "0", 0, []string{`"0"`}},
		"negative":                      {"20", "-1m", 0, []string{`"-1m"`}},
		"no number":                     {"20", "NaN", 0, []string{`"NaN"`}},
		"less than a nanosecond":        {"20", "1e-10", 0, []string{`"1e-10"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Load(lookup(map[string]string{operationTimeout: test.budget, shutdownTimeout: test.value}))
			if got.ShutdownTimeout != test.want || (test.want == 0) != (err != nil) {
				t.Fatalf("got %s and %v, want %s", got.ShutdownTimeout, err, test.want)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestAllBadSettingsInOneAnswer(t *testing.T) {
	t.Parallel()
	_, err := Load(lookup(map[string]string{
		databaseURL:          "",
		redisURL:             "memcached://cache",
		operationTimeout:     "soon", // a warning, not an error
		concurrency:          "many",
		logLevel:             "loud",
		logFormat:            "xml",
		allowPrivateNetworks: "perhaps",
		allowedHosts:         "ok.example,https://docs.example/mcp,a b",
		shutdownTimeout:      "later",
		retentionDays:        "a month",
		httpAddr:             "http://localhost:9090",
	}))
	var bad *Error
	if !errors.As(err, &bad) {
		t.Fatalf("got %v", err)
	}
	want := [][]string{
		{databaseURL, "is not set", "postgres://"},
		{redisURL, "redis://", "redis-cluster://"},
		{concurrency, `"many"`, "1 to 10000"},
		{logLevel, `"loud"`, "error, warn, info, debug or trace"},
		{logFormat, `"xml"`, "text or json"},
		{allowPrivateNetworks, `"perhaps"`, "true or false"},
		{allowedHosts, `"https://docs.example/mcp", "a b"`, "*.suffix"},
		{shutdownTimeout, `"later"`, "1m30s"},
		{retentionDays, `"a month"`, "1 to 36500", "0 to keep everything"},
		{httpAddr, `"http://localhost:9090"`, "127.0.0.1:9090", ":9090 for every address"},
	}
	if len(bad.Warnings) != 1 || !strings.Contains(bad.Warnings[0], `"soon"`) {
		t.Errorf("warned %q, want it to name the budget too", bad.Warnings)
	}
	if len(bad.Problems) != len(want) || strings.Count(err.Error(), "\n") != len(want)-1 {
		t.Fatalf("got %d problems:\n%s", len(bad.Problems), err)
	}
	for i, problem := range bad.Problems {
		for _, part := range want[i] {
			if !strings.Contains(problem, part) {
				t.Errorf("%q does not say %q", problem, part)
			}
		}
	}
}

// What settings are to each other is told along with what is wrong with others.
func TestRelationsAmongBadSettings(t *testing.T) {
	t.Parallel()
	_, err := Load(lookup(map[string]string{concurrency: "x", shutdownTimeout: "5", operationTimeout: "soon"}))
	var bad *Error
	if !errors.As(err, &bad) || len(bad.Problems) != 2 || len(bad.Warnings) != 1 {
		t.Fatalf("got %+v, want two problems and a warning", err)
	}
	for text, parts := range map[string][]string{
		bad.Problems[0]: {concurrency, `"x"`},
		bad.Problems[1]: {shutdownTimeout + " is 5 s", "20 s", "to 30 or more"},
		bad.Warnings[0]: {operationTimeout, `"soon"`, "20 s are used"},
	} {
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, value string }{
		{concurrency, "0"}, {concurrency, "-1"}, {concurrency, "10001"}, {concurrency, "1.5"}, {concurrency, "99999999999999999999"},
		{retentionDays, "-1"}, {retentionDays, "1.5"}, {retentionDays, "30d"}, {retentionDays, "36501"}, {retentionDays, "99999999999999999999"},
		{httpAddr, "9090"}, {httpAddr, "localhost"}, {httpAddr, ":http"}, {httpAddr, ":65536"}, {httpAddr, ":0"}, {httpAddr, "a b:9090"},
		{httpAddr, "::1:9090"}, {httpAddr, "localhost:9090/metrics"}, {httpAddr, "me@localhost:9090"},
		{logLevel, "panic"}, {logLevel, "fatal"},
		{allowedHosts, "*"}, {allowedHosts, "*.*"}, {allowedHosts, "docs.example:443"}, {allowedHosts, "10.1.0.0/99"},
	} {
		if _, err := Load(lookup(map[string]string{row.name: row.value})); err == nil {
			t.Errorf("%s=%q was taken", row.name, row.value)
		} else if !strings.HasPrefix(err.Error(), row.name+" ") {
			t.Errorf("%s=%q: %v does not begin with the setting", row.name, row.value, err)
		}
	}
}

func TestDatabaseURL(t *testing.T) {
	t.Parallel()
	taken := []string{
		"postgres://u:p%40ss@h:5433/d?sslmode=disable",
		"postgresql:///d?host=/run/postgresql",
		"postgres://u:pw@h1:5432,h2:5433/d?target_session_attrs=read-write",
		"postgres://u@h/d?pool_max_conns=5&application_name=a%3D%2F%2Fb",
		"user=u password=p dbname=d options=a://b",
	}
	for _, value := range taken {
		if _, err := Load(lookup(map[string]string{databaseURL: value})); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
	refused := map[string]string{
		"mysql://root:s3cret@h/d":                   `the scheme "mysql"`,
		"https://h":                                 `the scheme "https"`,
		"postgres://u:s3cret@h:http/d":              "port",
		"postgres://u:s3@cret@h/d":                  "percent-encode",
		"postgres://u:%s3cret@h/d":                  "percent-encoded",
		"host=h password=my s3cret":                 "key=value",
		"h/d":                                       "postgres://",
		"postgres://u:s3cret@h/d?sslmode=nonsense":  "sslmode",
		"postgres://u:s3cret@h/d?pool_max_conns=xx": "pool_max_conns",
	}
	for value, part := range refused {
		_, err := Load(lookup(map[string]string{databaseURL: value}))
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: got %v, want %q in it", value, err, part)
		}
		if err != nil && strings.Contains(err.Error(), "cret") {
			t.Errorf("%q: the error shows the password: %v", value, err)
		}
	}
}

func TestSettingsAreExplained(t *testing.T) {
	t.Parallel()
	for _, s := range Settings() {
		if !strings.HasPrefix(s.Name, "LEGWORK_") && !strings.HasSuffix(s.Name, "_PROXY") || s.Meaning == "" {
			t.Errorf("setting %+q has no name or no meaning", s.Name)
		}
	}
}

func TestTheProxyHasTheUsualNames(t *testing.T) {
	t.Parallel()
	base := map[string]string{"LEGWORK_DATABASE_URL": "postgres://localhost/legwork"}
	for _, tt := range []struct {
		story string
		env   map[string]string
		want  httpproxy.Config
		says  string
	}{
		{"none", nil, httpproxy.Config{}, ""},
		{"upper case", map[string]string{"HTTPS_PROXY": "http://proxy:3128", "HTTP_PROXY": "proxy:3129", "NO_PROXY": "a,b"},
			httpproxy.Config{HTTPSProxy: "http://proxy:3128", HTTPProxy: "http://proxy:3129", NoProxy: "a,b"}, ""},
		{"lower case, where the other is empty", map[string]string{"HTTPS_PROXY": "", "https_proxy": "http://proxy:3128"}, httpproxy.Config{HTTPSProxy: "http://proxy:3128"}, ""},
		{"no address", map[string]string{"HTTPS_PROXY": "ftp://user:s3cret@proxy"}, httpproxy.Config{}, "HTTPS_PROXY is not the address of a proxy"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			config, err := Load(func(name string) (string, bool) {
				value, set := tt.env[name]
				if !set {
					value, set = base[name]
				}
				return value, set
			})
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "s3cret")) {
				t.Fatalf("got %v, want %q", err, tt.says)
			}
			if config.Proxy != tt.want {
				t.Errorf("got %+v, want %+v", config.Proxy, tt.want)
			}
		})
	}
}
