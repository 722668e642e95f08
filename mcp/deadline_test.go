package mcp_test

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestGrantIsTheRemainderRoundedUp(t *testing.T) {
	t.Parallel()
	second := time.Second
	for _, tt := range []struct {
		story   string
		budget  time.Duration
		elapsed time.Duration
		want    time.Duration
		ok      bool
	}{
		{"nothing spent", 20 * second, 0, 20 * second, true},
		{"four seconds spent", 20 * second, 4 * second, 16 * second, true},
		{"a moment spent rounds up to all of it", 20 * second, 1, 20 * second, true},
		{"a moment more than four seconds spent", 20 * second, 4*second + 1, 16 * second, true},
		{"a moment left is granted the minimum", 20 * second, 20*second - 1, mcp.MinimumLeg, true},
		{"exactly spent", 20 * second, 20 * second, 0, false},
		{"overdrawn", 20 * second, 21 * second, 0, false},
		{"a budget below a second", 300 * time.Millisecond, 0, second, true},
		{"a budget of nothing", 0, 0, 0, false},
		{"a job whose time was over before", -5 * second, second, 0, false},
		{"a job whose time was over for ever", math.MinInt64, second, 0, false},
		{"a budget without end", math.MaxInt64, 0, math.MaxInt64, true},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			clock := new(mcptest.Clock)
			clock.Advance(time.Hour) // clocks need not begin at zero
			deadline := mcp.OpenDeadline(clock, installation(tt.budget))
			clock.Advance(tt.elapsed)
			if got, ok := deadline.Grant(); got != tt.want || ok != tt.ok {
				t.Errorf("Grant() = %v, %v; want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// FuzzGrant holds every grant against what it promises, whatever the budget and the readings of the clock.
func FuzzGrant(f *testing.F) {
	for _, budget := range []int64{0, 1, -1, int64(time.Second), int64(20 * time.Second), math.MaxInt64, math.MinInt64, math.MaxInt64 - 1} {
		for _, elapsed := range []int64{0, 1, int64(time.Second) - 1, int64(time.Second), int64(time.Hour), math.MaxInt64} {
			f.Add(budget, int64(0), elapsed)
			f.Add(budget, int64(time.Hour), elapsed)
		}
	}
	f.Fuzz(func(t *testing.T, budget, start, elapsed int64) {
		if start < 0 || elapsed < 0 || start > math.MaxInt64-elapsed {
			t.Skip("a monotonic clock does not run so")
		}
		clock := new(mcptest.Clock)
		clock.Advance(time.Duration(start))
		deadline := mcp.OpenDeadline(clock, installation(time.Duration(budget)))
		clock.Advance(time.Duration(elapsed))
		grant, ok := deadline.Grant()
		if want := budget > elapsed; ok != want {
			t.Fatalf("Grant() of budget %d after %d: %v, want %v", budget, elapsed, ok, want)
		}
		if !ok {
			if grant != 0 || deadline.Remaining() > 0 {
				t.Fatalf("a spent budget (%d after %d) grants %v, remains %v", budget, elapsed, grant, deadline.Remaining())
			}
			return
		}
		remains := time.Duration(budget - elapsed)
		if grant < mcp.MinimumLeg || grant < remains || grant-remains >= time.Second {
			t.Fatalf("Grant() of budget %d after %d = %v; %v remain", budget, elapsed, grant, remains)
		}
		if grant%time.Second != 0 && remains < math.MaxInt64-time.Second {
			t.Fatalf("Grant() = %v is not whole seconds", grant)
		}
	})
}

func TestJobTightensAndNeverWidens(t *testing.T) {
	t.Parallel()
	server := mcp.Budget{Total: 20 * time.Second, Owner: mcp.OwnerServer}
	for _, tt := range []struct {
		story string
		job   time.Duration
		want  mcp.Budget
	}{
		{"a job that allows more", time.Minute, server},
		{"a job that allows as much", 20 * time.Second, server},
		{"a job that allows less", 7 * time.Second, mcp.Budget{Total: 7 * time.Second, Owner: mcp.OwnerJob}},
		{"a job whose time is over", -time.Second, mcp.Budget{Total: -time.Second, Owner: mcp.OwnerJob}},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, server.Tighten(tt.job)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMonotonicClockRuns(t *testing.T) {
	t.Parallel()
	clock := mcp.MonotonicClock()
	first := clock.Now()
	for stop := time.Now().Add(patience); clock.Now() == first; {
		if time.Now().After(stop) {
			t.Fatal("the clock stands")
		}
	}
	if now := clock.Now(); now < first {
		t.Errorf("the clock ran from %v back to %v", first, now)
	}
}

func TestLegsAreGrantedTwentySixteenFourteen(t *testing.T) {
	t.Parallel()
	for _, options := range []struct {
		story string
		mcptest.Options
	}{{"json", mcptest.Options{}}, {"stream", mcptest.Options{Stream: true}}} {
		t.Run(options.story, func(t *testing.T) {
			t.Parallel()
			clock := new(mcptest.Clock)
			server := mcptest.New(t, options.Options)
			server.On("initialize", mcptest.Spend(clock, 4*time.Second))
			server.On("notifications/initialized", mcptest.Spend(clock, 2*time.Second))
			var mu sync.Mutex
			var bounds []time.Duration
			client := newClient(t, parts{clock: clock, wrap: func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if end, ok := r.Context().Deadline(); ok && r.Method == http.MethodPost {
						mu.Lock()
						bounds = append(bounds, time.Until(end))
						mu.Unlock()
					}
					return next.RoundTrip(r)
				})
			}})

			_, spent, err := client.CallTool(t.Context(), docs(server.URL), echo, installation(20*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			want := []time.Duration{20 * time.Second, 16 * time.Second, 14 * time.Second}
			if diff := cmp.Diff(want, grants(spent)); diff != "" {
				t.Error("grants:", diff)
			}
			// The grant is what really bounds the request. How much of it had passed when it was looked at is the machine's affair.
			if len(bounds) != len(want) {
				t.Fatalf("%d legs are bounded, want %d", len(bounds), len(want))
			}
			for i, bound := range bounds {
				if bound > want[i] || bound < want[i]-13*time.Second {
					t.Errorf("leg %d is bounded by %v, want about %v", i+1, bound, want[i])
				}
			}
			if spent.Legs[0].Elapsed != 4*time.Second || spent.Legs[1].Elapsed != 2*time.Second || spent.Legs[2].Elapsed != 0 {
				t.Errorf("the legs took %v, %v, %v; want 4s, 2s, 0s", spent.Legs[0].Elapsed, spent.Legs[1].Elapsed, spent.Legs[2].Elapsed)
			}
			if spent.Elapsed != 6*time.Second || spent.Latency() != 0 || spent.Budget != installation(20*time.Second) {
				t.Errorf("the account is %+v", spent)
			}
		})
	}
}

func TestFiftyPagesShareOneBudget(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	tools := make([]mcptest.Tool, mcp.MaxPages)
	for i := range tools {
		tools[i].Name = "tool_" + string(rune('a'+i/26)) + string(rune('a'+i%26))
	}
	server := mcptest.New(t, mcptest.Options{Tools: tools, PageSize: 1})
	server.On("tools/list", mcptest.Spend(clock, 300*time.Millisecond))
	client := newClient(t, parts{clock: clock})

	catalogue, spent, err := client.ListTools(t.Context(), docs(server.URL), installation(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	// One leg finds out the era, two are the handshake.
	if len(catalogue.Tools) != mcp.MaxPages || len(spent.Legs) != mcp.MaxPages+3 {
		t.Errorf("%d tools in %d legs, want %d in %d", len(catalogue.Tools), len(spent.Legs), mcp.MaxPages, mcp.MaxPages+3)
	}
	// 15 s went to the pages, so the last of them had 5.3 s.
	if got := grants(spent); got[3] != 20*time.Second || got[len(got)-1] != 6*time.Second ||
		!slices.IsSortedFunc(got, func(a, b time.Duration) int { return int(b - a) }) {
		t.Errorf("grants %v do not shrink from 20s to 6s", got)
	}

	// With half a second a page the fortieth is the last that the budget has room for.
	server.On("tools/list", mcptest.Spend(clock, 500*time.Millisecond))
	sent := len(server.Sent("tools/list"))
	_, spent, err = client.ListTools(t.Context(), docs(server.URL), installation(20*time.Second))
	want := `Budget spent: tools/list was not sent and server "docs" was not asked for it, because the 20 s of this operation went to ` +
		`tools/list (0 s), initialize (0 s), notifications/initialized (0 s) and 40 times tools/list (20 s in all). ` +
		`The 20 s are this installation's own setting: raise LEGWORK_MCP_OPERATION_TIMEOUT to allow more.`
	if f := failure(t, err); f.Kind != mcp.KindBudgetSpent || f.Message != want {
		t.Errorf("failure %s: %s\nwant %s", f.Kind, f.Message, want)
	}
	if got := len(server.Sent("tools/list")) - sent; got != 41 || len(spent.Legs) != 43 {
		t.Errorf("%d pages were asked for in %d legs, want the first and 40 in 43", got, len(spent.Legs))
	}
}

func TestOperationsAtOnceKeepTheirOwnBudgets(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	release := make(chan struct{})
	slow := mcptest.New(t, mcptest.Options{On: map[string]mcptest.Behaviour{"initialize": mcptest.Hold(release)}})
	quick := mcptest.New(t, mcptest.Options{On: map[string]mcptest.Behaviour{
		"initialize":                mcptest.Spend(clock, 4*time.Second),
		"notifications/initialized": mcptest.Spend(clock, 2*time.Second),
	}})
	client := newClient(t, parts{clock: clock})

	type outcome struct {
		spent mcp.Spent
		err   error
	}
	first := make(chan outcome, 1)
	go func() {
		_, spent, err := client.CallTool(t.Context(), docs(slow.URL), echo, mcp.Budget{Total: 30 * time.Second, Owner: mcp.OwnerServer})
		first <- outcome{spent, err}
	}()
	slow.Await(t, "initialize", 1)
	clock.Advance(7 * time.Second)
	_, spent, err := client.CallTool(t.Context(), mcp.Server{Identifier: "crm", URL: quick.URL, Revision: "2025-11-25"}, echo, installation(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]time.Duration{20 * time.Second, 16 * time.Second, 14 * time.Second}, grants(spent)); diff != "" {
		t.Error("the quick operation's grants:", diff)
	}
	close(release)
	done := receive(t, first, "the slow operation's outcome")
	if done.err != nil {
		t.Fatal(done.err)
	}
	if diff := cmp.Diff([]time.Duration{30 * time.Second, 17 * time.Second, 17 * time.Second}, grants(done.spent)); diff != "" {
		t.Error("the slow operation's grants:", diff)
	}
	if done.spent.Budget.Owner != mcp.OwnerServer || spent.Budget.Owner != mcp.OwnerInstallation {
		t.Errorf("the budgets were %+v and %+v", done.spent.Budget, spent.Budget)
	}
}

// A hundred operations at once, half of them out of budget after the handshake, half of them not.
func TestManyOperationsAtOnce(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	silent := mcptest.New(t, mcptest.Options{On: map[string]mcptest.Behaviour{"tools/call": mcptest.Stall}})
	client := newClient(t, parts{})
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			if i%2 == 0 {
				_, spent, err := client.CallTool(t.Context(), docs(server.URL), echo, ample)
				if err != nil || spent.Budget != ample {
					t.Errorf("a call of the healthy server: %v, %+v", err, spent.Budget)
				}
				return
			}
			_, spent, err := client.CallTool(t.Context(), mcp.Server{Identifier: "silent", URL: silent.URL}, echo, installation(2*time.Second))
			if err == nil || spent.Budget.Total != 2*time.Second {
				t.Errorf("a call of the silent server: %v, %+v", err, spent.Budget)
			}
		})
	}
	running.Wait()
	if got := len(server.Sent("tools/call")); got != 50 {
		t.Errorf("%d calls were sent to the healthy server, want 50", got)
	}
}

func TestSpentBudgetSendsNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story    string
		budget   mcp.Budget
		first    time.Duration // what initialize takes
		second   time.Duration // what notifications/initialized takes
		sent     []string
		sentence string
	}{
		{
			story: "handshake eats the installation's budget", budget: installation(20 * time.Second), first: 4 * time.Second, second: 16 * time.Second,
			sent: []string{"initialize", "notifications/initialized"},
			sentence: `Budget spent: tools/call was not sent and server "docs" was not asked for it, because the 20 s of this operation went to ` +
				`initialize (4 s) and notifications/initialized (16 s). ` +
				`The 20 s are this installation's own setting: raise LEGWORK_MCP_OPERATION_TIMEOUT to allow more.`,
		},
		{
			story: "initialize eats the server's budget", budget: mcp.Budget{Total: 5 * time.Second, Owner: mcp.OwnerServer}, first: 5500 * time.Millisecond,
			sent: []string{"initialize"},
			sentence: `Budget spent: notifications/initialized was not sent and server "docs" was not asked for it, because the 5 s of this operation went to ` +
				`initialize (5.5 s). The 5 s are this server's own setting: raise operation_timeout_seconds of server "docs" to allow more.`,
		},
		{
			story: "initialize eats the job's limit", budget: installation(20 * time.Second).Tighten(1500 * time.Millisecond), first: 1500 * time.Millisecond,
			sent: []string{"initialize"},
			sentence: `Budget spent: notifications/initialized was not sent and server "docs" was not asked for it, because the 1.5 s of this operation went to ` +
				`initialize (1.5 s). The 1.5 s are this job's own limit: enqueue it with a longer asynq Timeout or Deadline to allow more.`,
		},
		{
			story: "the job's limit had passed before", budget: installation(20 * time.Second).Tighten(-time.Minute),
			sent: []string{},
			sentence: `Budget spent: initialize was not sent and server "docs" was not asked for it, because no time was left when it began. ` +
				`It was the job's own limit that had passed: enqueue it with a longer asynq Timeout or Deadline to allow more.`,
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			clock := new(mcptest.Clock)
			server := mcptest.New(t, mcptest.Options{NoSession: true})
			server.On("initialize", mcptest.Spend(clock, tt.first))
			server.On("notifications/initialized", mcptest.Spend(clock, tt.second))
			var mu sync.Mutex
			carried := 0
			client := newClient(t, parts{clock: clock, wrap: func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					mu.Lock()
					carried++
					mu.Unlock()
					return next.RoundTrip(r)
				})
			}})

			_, spent, err := client.CallTool(t.Context(), docs(server.URL), echo, tt.budget)
			f := failure(t, err)
			if f.Kind != mcp.KindBudgetSpent || f.Asked != mcp.AskedNo || f.Server != "docs" || f.Message != tt.sentence {
				t.Errorf("failure %s, asked %s, server %q:\n     %s\nwant %s", f.Kind, f.Asked, f.Server, f.Message, tt.sentence)
			}
			client.Close()
			if diff := cmp.Diff(tt.sent, server.Methods()); diff != "" {
				t.Error("the server saw:", diff)
			}
			if carried != len(tt.sent) || len(spent.Legs) != len(tt.sent) {
				t.Errorf("%d requests were carried and %d legs recorded, want %d", carried, len(spent.Legs), len(tt.sent))
			}
			for _, leg := range spent.Legs {
				if leg.Outcome != mcp.OutcomeOK {
					t.Errorf("leg %+v did not fail: the one after it was not sent", leg)
				}
			}
		})
	}
}

func TestBudgetWithoutEnd(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	client := newClient(t, parts{})
	_, spent, err := client.CallTool(t.Context(), docs(server.URL), echo, installation(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	for _, grant := range grants(spent) {
		if grant < math.MaxInt64-time.Hour {
			t.Errorf("a leg was granted %v of a budget without end", grant)
		}
	}
}

func TestLegAsItIsStored(t *testing.T) {
	t.Parallel()
	stored := `[{"method":"initialize","granted_ms":20000,"elapsed_ms":4012,"outcome":"ok","status":200},` +
		`{"method":"tools/call","granted_ms":16000,"elapsed_ms":16000,"outcome":"no_answer","status":null}]`
	want := []mcp.Leg{
		{Method: "initialize", Granted: 20 * time.Second, Elapsed: 4012 * time.Millisecond, Outcome: "ok", Status: 200},
		{Method: "tools/call", Granted: 16 * time.Second, Elapsed: 16 * time.Second, Outcome: "no_answer"},
	}
	written, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stored, string(written)); diff != "" {
		t.Error("written:", diff)
	}
	var read []mcp.Leg
	if err := json.Unmarshal([]byte(stored), &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read); diff != "" {
		t.Error("read:", diff)
	}
	if err := new(mcp.Leg).UnmarshalJSON([]byte(`{"granted_ms":"soon"}`)); err == nil || strings.Contains(err.Error(), "panic") {
		t.Errorf("a leg of another form gives %v", err)
	}
}
