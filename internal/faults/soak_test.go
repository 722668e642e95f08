package faults

import (
	"bufio"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A worker under a mixed load stays the size that it has.
func TestSoak(t *testing.T) {
	length := 10 * time.Minute
	if given := os.Getenv("LEGWORK_SOAK"); given != "" {
		var err error
		if length, err = time.ParseDuration(given); err != nil {
			t.Fatalf("LEGWORK_SOAK: %v", err)
		}
	}
	s, random := newSite(t), newChance(t)
	for name, acts := range map[string]func(call){
		"quick": answer,
		"slow":  after(func() time.Duration { return random.upTo(time.Second) }),
		"hangs": hang,
		"drips": drip,
		"dies":  hangUp,
		"large": func(c call) {
			respond(c.w, c.id, `{"content":[{"type":"text","text":"`+strings.Repeat("x", 256<<10)+`"}]}`)
		},
		"fails": func(c call) {
			respond(c.w, c.id, `{"content":[{"type":"text","text":"no"}],"isError":true}`)
		},
	} {
		s.add(name, newServer(t, acts).URL, 2*time.Second, 0)
	}
	s.add("nowhere", "http://"+freeAddress(t)+"/mcp", 2*time.Second, 0)
	// Twice as many quick ones; no more for those that do not answer than are worked off.
	load := []string{"quick", "slow", "quick", "dies", "quick", "large", "fails", "nowhere", "quick", "slow", "hangs", "drips"}

	metrics := freeAddress(t)
	p := s.worker(settings{"LEGWORK_CONCURRENCY": "50", "LEGWORK_HTTP_ADDR": metrics})

	var memory, threads, files, goroutines []int
	var ids []uuid.UUID
	sample := time.NewTicker(time.Second)
	defer sample.Stop()
	pace := time.NewTicker(40 * time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(length); time.Now().Before(end); {
		select {
		case <-pace.C:
			ids = append(ids, s.step(load[len(ids)%len(load)], writes))
		case <-sample.C:
			if p.Ended() {
				t.Fatalf("the worker ended:\n%s", p.Tail(40))
			}
			memory, threads, files = append(memory, p.status("VmRSS")), append(threads, p.status("Threads")), append(files, p.files())
			if n, ok := goroutinesOf(metrics); ok {
				goroutines = append(goroutines, n)
			}
		}
	}
	s.awaitAll(ids, bound)
	t.Logf("%d steps in %s", len(ids), length)
	flat := func(what string, samples []int, share float64, more int) {
		t.Helper()
		if len(samples) < 10 {
			t.Errorf("only %d samples of its %s", len(samples), what)
			return
		}
		fifth := len(samples) / 5
		early, late := median(samples[fifth:2*fifth]), median(samples[len(samples)-fifth:])
		t.Logf("%s: %d in the second fifth, %d in the last (medians); %d at most", what, early, late, slices.Max(samples))
		if float64(late) > share*float64(early)+float64(more) {
			t.Errorf("its %s grew from %d to %d", what, early, late)
		}
	}
	flat("memory in kB", memory, 1.1, 8<<10)
	flat("threads", threads, 1.1, 5)
	flat("files and connections", files, 1.1, 15)
	flat("goroutines", goroutines, 1.1, 60)
	p.stop()
}

func median(samples []int) int {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}

// goroutinesOf asks a worker how many goroutines it has.
func goroutinesOf(address string) (int, bool) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), "go_goroutines "); found {
			n, err := strconv.Atoi(value)
			return n, err == nil
		}
	}
	return 0, false
}
