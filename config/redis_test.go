package config

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hibiken/asynq"
)

var compareTLS = cmp.Options{cmpopts.IgnoreUnexported(tls.Config{})}

func TestRedisURL(t *testing.T) {
	t.Parallel()
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	tests := map[string]struct {
		url  string
		want asynq.RedisConnOpt
	}{
		"a host":                  {"redis://cache", asynq.RedisClientOpt{Addr: "cache:6379"}},
		"a port and a database":   {"redis://cache:6380/5", asynq.RedisClientOpt{Addr: "cache:6380", DB: 5}},
		"a trailing slash":        {"redis://cache/", asynq.RedisClientOpt{Addr: "cache:6379"}},
		"only a password":         {"redis://:pw@cache", asynq.RedisClientOpt{Addr: "cache:6379", Password: "pw"}},
		"a user of an ACL":        {"redis://worker:pw@cache", asynq.RedisClientOpt{Addr: "cache:6379", Username: "worker", Password: "pw"}},
		"an encoded password":     {"redis://:a%2Fb%40c%23%3F@cache", asynq.RedisClientOpt{Addr: "cache:6379", Password: "a/b@c#?"}},
		"an @ in a password":      {"redis://:a@b@cache", asynq.RedisClientOpt{Addr: "cache:6379", Password: "a@b"}},
		"IPv6":                    {"redis://[::1]:6380", asynq.RedisClientOpt{Addr: "[::1]:6380"}},
		"IPv6 without a port":     {"redis://[::1]", asynq.RedisClientOpt{Addr: "[::1]:6379"}},
		"TLS":                     {"rediss://cache", asynq.RedisClientOpt{Addr: "cache:6379", TLSConfig: secure}},
		"a socket":                {"redis-socket:///run/redis.sock", asynq.RedisClientOpt{Network: "unix", Addr: "/run/redis.sock"}},
		"a socket with a user":    {"redis-socket://u:pw@/run/redis.sock?db=2", asynq.RedisClientOpt{Network: "unix", Addr: "/run/redis.sock", Username: "u", Password: "pw", DB: 2}},
		"sentinels":               {"redis-sentinel://s1,s2:5000/4?master=main", asynq.RedisFailoverClientOpt{MasterName: "main", SentinelAddrs: []string{"s1:26379", "s2:5000"}, DB: 4}},
		"sentinels and passwords": {"redis-sentinel://su:sp@s1?master=main&username=u&password=p%26q", asynq.RedisFailoverClientOpt{MasterName: "main", SentinelAddrs: []string{"s1:26379"}, SentinelUsername: "su", SentinelPassword: "sp", Username: "u", Password: "p&q"}},
		"sentinels on IPv6":       {"redis-sentinel://[::1]:1,[::2]?master=m", asynq.RedisFailoverClientOpt{MasterName: "m", SentinelAddrs: []string{"[::1]:1", "[::2]:26379"}}},
		"sentinels with TLS":      {"rediss-sentinel://s1?master=m", asynq.RedisFailoverClientOpt{MasterName: "m", SentinelAddrs: []string{"s1:26379"}, TLSConfig: secure}},
		"a cluster":               {"redis-cluster://u:p@c1:7000,c2", asynq.RedisClusterClientOpt{Addrs: []string{"c1:7000", "c2:6379"}, Username: "u", Password: "p"}},
		"a cluster's database":    {"redis-cluster://c1/0", asynq.RedisClusterClientOpt{Addrs: []string{"c1:6379"}}},
		"a cluster with TLS":      {"rediss-cluster://c1", asynq.RedisClusterClientOpt{Addrs: []string{"c1:6379"}, TLSConfig: secure}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseRedisURL(test.url)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, compareTLS); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What asynq's own parser understands means the same here.
func TestRedisURLMeansWhatAsynqMeans(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"redis://cache:6379", "redis://:pw@cache:6380/3", "redis-socket:///tmp/r.sock?db=1", "redis-socket://:pw@/tmp/r.sock",
		"redis-sentinel://:pw@s1:26379,s2:26380?master=main",
	} {
		want, err := asynq.ParseRedisURI(raw)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseRedisURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if diff := cmp.Diff(want, got, compareTLS); diff != "" {
			t.Errorf("%s: %s", raw, diff)
		}
	}
}

func TestBadRedisURL(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ url, says string }{
		"no scheme":                        {"cache:6379", "redis://"},
		"an unknown scheme":                {"memcached://cache", "redis://"},
		"no host":                          {"redis://", "no host"},
		"a database that is a word":        {"redis://cache/main", "no number"},
		"a negative database":              {"redis://cache/-1", "no number"},
		"a database in the wrong place":    {"redis://cache?db=2", "?db="},
		"a port out of range":              {"redis://cache:70000", "65535"},
		"a port that is a word":            {"redis://cache:main", "no number"},
		"a slash in a password":            {"redis://:s3/cret@cache:6379", "percent-encode"},
		"a slash after a user":             {"redis://u:s3/cret", "%2F"},
		"a hash in a password":             {"redis://:s3#cret@cache", "percent-encode"},
		"a question mark in a password":    {"redis://:s3?cret@cache", "percent-encode"},
		"a bad escape in a password":       {"redis://:%zzcret@cache", "percent-encode"},
		"several hosts":                    {"redis://:s3cret@c1,c2", "redis-cluster://"},
		"an empty host in a list":          {"redis-cluster://c1,,c2", "no host"},
		"sentinels without a master":       {"redis-sentinel://:s3cret@s1", "?master="},
		"a cluster with a database":        {"redis-cluster://:s3cret@c1/2", "database 0"},
		"a socket with a host":             {"redis-socket://:s3cret@cache/run/r.sock", "three slashes"},
		"a socket without a path":          {"redis-socket://", "three slashes"},
		"a misspelt parameter of sentinel": {"redis-sentinel://s1?mastre=m", "?mastre="},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(lookup(map[string]string{redisURL: test.url}))
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want %q in it", err, test.says)
			}
			if strings.Contains(err.Error(), "cret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}
