package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/store"
)

func TestStepsPastLease(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addTool("docs", "reads", "read_only")
	runs := func(tool string, ago string) uuid.UUID {
		t.Helper()
		claim := b.claim(request("docs", tool))
		b.exec(`update agent_step set lease_expires_at = now() - $2::interval where id = $1`, claim.Step.ID, ago)
		return claim.Step.ID
	}
	final, oldest, repeatable := runs("writes", "61 seconds"), runs("unknown", "2 hours"), runs("reads", "61 seconds")
	runs("writes", "30 seconds")
	runs("reads", "-30 seconds")
	settled := b.claim(request("docs", "writes"))
	b.settle(settled, succeeded)

	gotRepeatable, gotFinal, err := b.StepsPastLease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "repeatable", []store.StepClaim{{ID: repeatable, Status: "running", Claim: 1}}, gotRepeatable)
	diff(t, "final", []store.StepClaim{{ID: oldest, Status: "running", Claim: 1}, {ID: final, Status: "running", Claim: 1}}, gotFinal)
}

func TestStepsWaiting(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	waits := func(server *string, kind, status, age string) uuid.UUID {
		t.Helper()
		id := uuid.New()
		b.exec(`insert into agent_step (id, kind, server, tool, status, created_at) values ($1, $2, $3, 'search', $4, now() - $5::interval)`,
			id, kind, server, status, age)
		return id
	}
	docs, nobody := "docs", "nobody"
	late, later := waits(&docs, "tool", "pending", "61 seconds"), waits(&docs, "tool", "pending", "1 hour")
	lost, none := waits(&nobody, "tool", "pending", "2 hours"), waits(nil, "tool", "pending", "1 hour")
	waits(&docs, "tool", "pending", "30 seconds")
	waits(&docs, "model", "pending", "1 hour")
	waits(&docs, "tool", "awaiting_approval", "1 hour")

	known, unknown, err := b.StepsWaiting(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "known", []store.StepClaim{{ID: later, Status: "pending"}, {ID: late, Status: "pending"}}, known)
	diff(t, "unknown", []store.StepClaim{{ID: lost, Status: "pending"}, {ID: none, Status: "pending"}}, unknown)
}

func TestReleaseImports(t *testing.T) {
	b := newBench(t)
	for identifier, ago := range map[string]string{"dead": "61 seconds", "dying": "30 seconds", "alive": "-30 seconds"} {
		b.addServer(identifier)
		b.claimImport(identifier)
		b.exec(`update mcp_server set import_lease_expires_at = now() - $2::interval where identifier = $1`, identifier, ago)
	}
	b.addServer("idle")
	servers, err := b.ImportsPastLease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "servers", []string{"dead"}, servers)
	if err := b.ReleaseImports(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if servers, err = b.ImportsPastLease(t.Context(), time.Minute); err != nil || len(servers) > 0 {
		t.Errorf("%v are left (%v)", servers, err)
	}
	if n := ask[int](b, `select count(*) from mcp_server where import_lease_expires_at is not null and import_claimed_by is not null`); n != 2 {
		t.Errorf("%d imports are claimed, want the two that may still be settled", n)
	}
}

func TestIdleRuns(t *testing.T) {
	b := newBench(t)
	ago := func(hours int) time.Time { return time.Now().Add(-time.Duration(hours) * time.Hour) }
	empty := b.oldRun("running", ago(50))
	b.oldRun("running", ago(1))
	b.oldRun("succeeded", ago(50))
	over := b.oldRun("running", ago(40))
	b.old("succeeded", ago(30), over)
	recent := b.oldRun("running", ago(40))
	b.old("succeeded", ago(30), recent)
	b.old("failed", ago(2), recent)
	waits := b.oldRun("running", ago(40))
	b.old("succeeded", ago(30), waits)
	b.old("awaiting_approval", ago(30), waits)

	oldest, total, err := b.IdleRuns(t.Context(), 24*time.Hour, 10)
	if err != nil || total != 2 {
		t.Fatalf("%d runs (%v), want two", total, err)
	}
	diff(t, "runs", []uuid.UUID{*empty, *over}, oldest)
	if oldest, total, err = b.IdleRuns(t.Context(), 24*time.Hour, 1); err != nil || total != 2 || len(oldest) != 1 {
		t.Errorf("got %v of %d (%v), want one of two", oldest, total, err)
	}
}
