// Package redistest lends tests a Redis of their own.
package redistest

import (
	"context"
	neturl "net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"legwork/internal/scratch"
)

// New is the URL of an empty Redis that no other test uses. It is a private redis-server that stops with the test, or,
// where LEGWORK_TEST_REDIS_URL is set, one of that server's numbered databases that was empty, which is emptied again.
func New(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("LEGWORK_TEST_REDIS_URL"); url != "" {
		return borrow(t, url)
	}
	return Start(t).URL
}

// Start is a private redis-server that the test may kill and restart, whatever the environment says.
func Start(t testing.TB) *scratch.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // it may have to be installed
	defer cancel()
	if err := scratch.Ensure(ctx, os.Stderr, scratch.RedisProgram); err != nil {
		t.Fatal(err)
	}
	server, err := scratch.StartRedis(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// lock is the key by which tests in several processes keep out of each other's databases.
const lock = "legwork:test:borrowed"

func borrow(t testing.TB, url string) string {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatalf("LEGWORK_TEST_REDIS_URL: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		for db := 1; db <= 15; db++ {
			options := *options
			options.DB = db
			client := redis.NewClient(&options)
			if take(ctx, t, client) {
				t.Cleanup(func() {
					client.FlushDB(context.Background())
					client.Close()
				})
				return withDatabase(t, url, db)
			}
			client.Close()
		}
		select {
		case <-ctx.Done():
			t.Fatal("LEGWORK_TEST_REDIS_URL: none of the databases 1 to 15 is empty; only empty ones are used")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// take locks a database if it is empty. The key expires, so that a test that was killed does not keep it.
func take(ctx context.Context, t testing.TB, client *redis.Client) bool {
	t.Helper()
	size, err := client.DBSize(ctx).Result()
	if err != nil {
		t.Fatalf("LEGWORK_TEST_REDIS_URL: %v", err)
	}
	if size != 0 {
		return false
	}
	err = client.SetArgs(ctx, lock, os.Getpid(), redis.SetArgs{Mode: "NX", TTL: 10 * time.Minute}).Err()
	if err != nil && err != redis.Nil {
		t.Fatalf("LEGWORK_TEST_REDIS_URL: %v", err)
	}
	return err == nil
}

func withDatabase(t testing.TB, raw string, db int) string {
	t.Helper()
	u, err := neturl.Parse(raw)
	if err != nil {
		t.Fatalf("LEGWORK_TEST_REDIS_URL: %v", err)
	}
	u.Path = "/" + strconv.Itoa(db)
	return u.String()
}
