package faults

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/worker"
)

// A row that waits ends, whatever became of its task.
func TestNothingIsStranded(t *testing.T) {
	t.Parallel()
	t.Run("rows without tasks", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		s.worker(nil)
		var ids []uuid.UUID
		for range 150 {
			ids = append(ids, s.row("docs", writes))
		}
		s.allSucceed(counting, ids)
	})
	t.Run("an empty Redis before the worker came", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		ids := s.rowsWithTasks(150)
		s.flush()
		s.worker(nil)
		s.allSucceed(counting, ids)
	})
	t.Run("an empty Redis in the middle of the work", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		counting.act(after(func() time.Duration { return 500 * time.Millisecond }))
		s.worker(settings{"LEGWORK_CONCURRENCY": "10"})
		ids := s.rowsWithTasks(150)
		counting.awaitCalls(t, 10)
		s.flush()
		s.allSucceed(counting, ids)
	})
	t.Run("an empty Redis while steps wait for their server", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		release := make(chan struct{})
		counting.act(held(release))
		s.exec(`update mcp_server set max_in_flight = 2`)
		s.worker(settings{"LEGWORK_CONCURRENCY": "10"})
		ids := s.steps(50, "docs", writes)
		s.awaitRows(len(ids))
		s.flush()
		close(release)
		s.allSucceed(counting, ids)
	})
	t.Run("archived tasks", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		ids := s.rowsWithTasks(20)
		for _, id := range ids {
			if err := s.inspect.ArchiveTask(worker.QueueAgent, id.String()); err != nil {
				t.Fatal(err)
			}
		}
		s.worker(nil)
		s.allSucceed(counting, ids)
	})
	t.Run("jobs without tries or rows while Postgres is away, and a worker that stops meanwhile", func(t *testing.T) {
		t.Parallel()
		s, counting := stranded(t)
		link, databaseURL := s.cutInFront(s.databaseURL)
		behindLink := settings{"LEGWORK_DATABASE_URL": databaseURL, "LEGWORK_MCP_OPERATION_TIMEOUT": "100"}
		first := s.worker(behindLink)
		link.breakAll()
		ids := s.steps(10, "docs", writes, asynq.MaxRetry(0))
		first.AwaitSaying("no job can be begun")
		first.wantStopped(45 * time.Second) // no operation runs
		link.restore()
		s.worker(behindLink)
		s.allSucceed(counting, ids)
	})
}

func stranded(t *testing.T) (*site, *server) {
	t.Helper()
	s, counting := newSite(t), newServer(t, answer)
	s.add("docs", counting.URL, 20*time.Second, 40)
	return s, counting
}

func (s *site) rowsWithTasks(n int) []uuid.UUID {
	s.t.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = s.row("docs", writes)
		s.enqueue(ids[i], "docs", writes)
	}
	return ids
}

func (s *site) flush() {
	s.t.Helper()
	options, err := redis.ParseURL(s.redis.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// allSucceed waits until the steps have ended, and wants each to have been called once.
func (s *site) allSucceed(counting *server, ids []uuid.UUID) {
	s.t.Helper()
	for id, row := range s.awaitAll(ids, bound) {
		if n := counting.called(id); row.Status != "succeeded" || n != 1 {
			s.t.Errorf("step %s was called %d times and is %s", id, n, brief(row))
		}
	}
}
