package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/mcp"
)

// chance is a source of random numbers that can be had again by its seed.
type chance struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newChance(t testing.TB) *chance {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("LEGWORK_FAULTS_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("LEGWORK_FAULTS_SEED: %v", err)
		}
	}
	t.Logf("LEGWORK_FAULTS_SEED=%d", seed)
	return &chance{r: rand.New(rand.NewPCG(seed, 0))}
}

func (c *chance) upTo(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.r.Int64N(int64(d)))
}

// A tool call is sent at most once, whatever dies, and every row tells the truth.
func TestAtMostOnce(t *testing.T) {
	const (
		steps   = 1200
		workers = 3
		budget  = 2 * time.Second
	)
	s, random := newSite(t), newChance(t)
	// Some answers come too late: that is a failure that is known.
	counting := newServer(t, after(func() time.Duration { return random.upTo(budget + budget/10) }))
	s.add("docs", counting.URL, budget, 40)

	// Each worker is killed again and again. One lives for up to 15 s, so that some get to look after what others left.
	over := make(chan struct{})
	var killers sync.WaitGroup
	var kills atomic.Int64
	// What ends the test early ends the killers first: they start processes of this test.
	t.Cleanup(func() { killers.Wait() })
	stop := sync.OnceFunc(func() { close(over) })
	t.Cleanup(stop)
	for range workers {
		killers.Go(func() {
			for {
				p := s.worker(settings{"LEGWORK_CONCURRENCY": "40"})
				select {
				case <-time.After(random.upTo(15 * time.Second)):
					p.Kill()
					kills.Add(1)
				case <-over:
					return
				}
			}
		})
	}

	tools := []string{writes, puts, reads}
	var ids []uuid.UUID
	toolOf := map[uuid.UUID]string{}
	for i := range steps {
		tool := tools[i%len(tools)]
		var id uuid.UUID
		if i%2 == 0 {
			id = s.step("docs", tool)
		} else { // a backend that has its rows first
			id = s.row("docs", tool)
			s.enqueue(id, "docs", tool)
		}
		ids, toolOf[id] = append(ids, id), tool
		time.Sleep(50 * time.Millisecond) // the pace of the load
	}
	rows := s.awaitAll(ids, 2*asynqBound)
	s.awaitQuietQueue() // what asynq delivers again later is not sent again either
	stop()
	killers.Wait()

	calls, ended, again := counting.counts(), map[string]int{}, 0
	for _, id := range ids {
		row, called := rows[id], calls[id.String()]
		wrong := func(why string) { t.Errorf("%s: called %d times, %s: %s", why, called, toolOf[id], brief(row)) }
		how := row.Status + " " + row.FailureKind
		ended[toolOf[id]+" "+how]++
		again += max(0, called-1)
		switch kind := mcp.Kind(row.FailureKind); {
		case toolOf[id] == writes && called > 1:
			wrong("sent twice")
		case row.Status == "succeeded" && called < 1:
			wrong("succeeded without a call")
		case row.Status == "succeeded" && toolOf[id] == writes && !strings.Contains(string(row.Result), fmt.Sprintf("call 1 of %s", id)):
			wrong("not the answer to its call")
		case row.Status == "succeeded":
		case kind == mcp.KindInterrupted && toolOf[id] != writes:
			wrong("could have been repeated")
		case kind == mcp.KindInterrupted && (row.Asked != "unknown" || !strings.Contains(row.FailureMessage, "nobody knows")):
			wrong("does not say that nobody knows")
		case kind == mcp.KindInterrupted:
		case kind == mcp.KindNoAnswer && called > 0:
		case kind == mcp.KindBudgetSpent || kind == mcp.KindNoAnswer: // a machine that is busy spends it on the handshake
			if called > 0 && toolOf[id] == writes {
				wrong("called, and the row says that it was not")
			}
		default:
			wrong("ended in a way that nothing here explains")
		}
	}
	t.Logf("%d steps, %d workers killed, %d calls repeated: %v", len(ids), kills.Load(), again, ended)
	if ended[writes+" failed interrupted"] == 0 || again == 0 {
		t.Error("no worker was killed in the middle of a call: nothing was tried")
	}
}
