package store_test

import (
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/store"
)

func TestUnattended(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.exec(`insert into mcp_tool (name, server, remote_name, effect) values
		('mcp_docs_reads', 'docs', 'reads', 'read_only'), ('mcp_docs_writes', 'docs', 'writes', 'non_idempotent_write')`)
	add := func(columns, values string) uuid.UUID {
		id := uuid.New()
		b.exec(`insert into agent_step (id, server, `+columns+`) values ($1, 'docs', `+values+`)`, id)
		return id
	}
	const running = `tool, status, claim, claimed_by, lease_expires_at, created_at`
	want := []uuid.UUID{
		add(running, `'reads', 'running', 3, 'dead', now() - interval '1 second', now() - interval '3 hours'`),
		add(`tool, created_at, arguments`, `'writes', now() - interval '2 hours', '{"of": "megabytes"}'`),
		add(`tool, created_at, woken_at`, `'writes', now() - interval '1 hour', now() - interval '31 seconds'`),
		add(running+`, woken_at`, `'reads', 'running', 1, 'dead', now() - interval '1 second', now() - interval '50 minutes', now() - interval '40 minutes'`),
	}
	add(`tool, created_at`, `'writes', now() - interval '20 seconds'`)                                                       // has not waited for long
	add(`tool, created_at, woken_at`, `'writes', now() - interval '1 hour', now() - interval '20 seconds'`)                  // was looked after
	add(`tool, created_at, kind`, `'writes', now() - interval '1 hour', 'model'`)                                            // none of a worker's
	add(`tool, created_at, status`, `'writes', now() - interval '1 hour', 'awaiting_approval'`)                              // a person's
	add(running, `'reads', 'running', 1, 'alive', now() + interval '1 second', now() - interval '1 hour'`)                   // its worker may live
	add(running, `'writes', 'running', 1, 'dead', now() - interval '1 second', now() - interval '1 hour'`)                   // is settled, not repeated
	add(running+`, woken_at`, `'reads', 'running', 1, 'dead', now() - interval '10 seconds', now(), now() - interval '5 s'`) // was looked after
	add(`tool, created_at, status, finished_at`, `'reads', now() - interval '1 hour', 'succeeded', now()`)

	// Two that ask at once never get the same.
	var mu sync.Mutex
	var found []store.Step
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			steps, err := b.Unattended(t.Context(), 30*time.Second, 1)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, steps...)
		})
	}
	asking.Wait()
	rest, err := b.Unattended(t.Context(), 30*time.Second, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []uuid.UUID
	for _, step := range append(found, rest...) {
		got = append(got, step.ID)
		if step.Arguments != nil {
			t.Errorf("step %s comes with its arguments, which nobody needs here", step.ID)
		}
	}
	byText := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(want, byText)
	slices.SortFunc(got, byText)
	diff(t, "the steps", want, got)
	if again, err := b.Unattended(t.Context(), 30*time.Second, 100); err != nil || len(again) != 0 {
		t.Errorf("the next look finds %d (%v), want none", len(again), err)
	}
}

func TestAddStep(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	r, run := request("docs", "search"), uuid.New()
	r.RunID = &run
	for range 2 {
		if err := b.AddStep(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	step := b.step(r.ID)
	diff(t, "the row", store.Step{
		ID: r.ID, RunID: &run, Kind: "tool", Server: "docs", Tool: "search", Arguments: json.RawMessage(`{"q":1}`),
		Status: "pending", Legs: json.RawMessage(`[]`), CreatedAt: step.CreatedAt,
	}, step)
	for _, said := range []string{"nightly", ""} { // a task whose id is the step's does not make the other unknown
		r.TaskID = said
		if err := b.AddStep(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := b.step(r.ID).TaskID; got != "nightly" {
			t.Errorf("with task %q the row says %q, want nightly", said, got)
		}
	}
	claim := b.claim(r)
	if claim.Outcome != store.Claimed || claim.Run == nil || claim.Run.ID != run {
		t.Errorf("claim %+v, want it claimed with its run", claim)
	}
	r.TaskID = "another"
	if err := b.AddStep(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	diff(t, "a row that runs", claim.Step, b.step(r.ID))
}
