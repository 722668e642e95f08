package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"legwork/store"
)

func tool(server, remoteName string) store.ImportedTool {
	return store.ImportedTool{
		Name: "mcp_" + server + "_" + remoteName, HashedName: "mcp_" + server + "_" + remoteName + "_1a2b3c4d", RemoteName: remoteName,
		Title: "The " + remoteName, Description: "does " + remoteName, InputSchema: json.RawMessage(`{ "type":"object" }`),
		Annotations: json.RawMessage(`{"readOnlyHint":true}`),
	}
}

func (b *bench) claimImport(server string) store.ImportClaim {
	b.t.Helper()
	claim, err := b.ClaimImport(b.t.Context(), store.ImportRequest{
		Server: server, Worker: "w1", Budget: 20 * time.Second, Margin: 15 * time.Second,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return claim
}

func (b *bench) importTools(server string, tools ...store.ImportedTool) store.ImportReport {
	b.t.Helper()
	return b.settleImport(server, b.claimImport(server).Claim, tools...)
}

func (b *bench) settleImport(server string, claim int64, tools ...store.ImportedTool) store.ImportReport {
	b.t.Helper()
	report, err := b.SettleImport(b.t.Context(), server, claim, tools, nil, store.ImportSpent{BudgetMS: 20000})
	if err != nil {
		b.t.Fatal(err)
	}
	return report
}

func (b *bench) tool(name string) store.Tool {
	b.t.Helper()
	tool, err := b.Tool(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return tool
}

func TestClaimImport(t *testing.T) {
	b := newBench(t)
	if claim := b.claimImport("nobody"); claim.Server != nil || claim.Claim != 0 || claim.Busy {
		t.Errorf("an unknown server: %+v", claim)
	}
	b.addServer("off", func(s *store.Server) { s.Enabled = false })
	b.addServer("unclassed", func(s *store.Server) { s.DataClass = "" })
	for _, inert := range []string{"off", "unclassed"} {
		if claim := b.claimImport(inert); claim.Server == nil || claim.Server.Inert() == "" || claim.Claim != 0 || claim.Busy {
			t.Errorf("an inert server: %+v, want nothing claimed", claim)
		}
	}
	b.addServer("docs")
	claim := b.claimImport("docs")
	if claim.Server == nil || claim.Server.Identifier != "docs" || claim.Claim != 1 || claim.Busy || claim.LeaseExpiresAt == nil {
		t.Errorf("claim %+v, want it claimed", claim)
	}
	if busy := b.claimImport("docs"); !busy.Busy || busy.Claim != 0 || !busy.LeaseExpiresAt.Equal(*claim.LeaseExpiresAt) {
		t.Errorf("while it runs: %+v, want busy until %v", busy, claim.LeaseExpiresAt)
	}
	b.settleImport("docs", claim.Claim)
	if next := b.claimImport("docs"); next.Claim <= claim.Claim {
		t.Errorf("after it ended: %+v, want claim 2", next)
	}
}

func TestImportsAtOnceHaveOneWinner(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	var mu sync.Mutex
	claimed, busy := 0, 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			claim, err := b.ClaimImport(t.Context(), store.ImportRequest{Server: "docs", Worker: "w", Budget: time.Minute})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if claim.Busy {
				busy++
			} else if claim.Claim == 1 {
				claimed++
			}
		})
	}
	wg.Wait()
	if claimed != 1 || busy != 7 {
		t.Errorf("%d claimed and %d busy, want 1 and 7", claimed, busy)
	}
}

func TestOnlyTheLatestImportSettles(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	first := b.claimImport("docs")
	b.exec(`update mcp_server set import_lease_expires_at = now() - interval '1 second'`)
	second := b.claimImport("docs")
	if second.Claim != 2 {
		t.Fatalf("claim %+v, want it taken over", second)
	}
	_, err := b.SettleImport(t.Context(), "docs", first.Claim, []store.ImportedTool{tool("docs", "search")}, nil, store.ImportSpent{})
	wantError(t, err, store.ErrClaimLost)
	wantError(t, b.FailImport(t.Context(), "docs", first.Claim, store.Failure{Kind: "no_answer", Message: "late", Asked: "unknown"}, store.ImportSpent{}), store.ErrClaimLost)
	_, err = b.SettleImport(t.Context(), "docs", 0, nil, nil, store.ImportSpent{})
	wantError(t, err, store.ErrClaimLost)
	_, err = b.SettleImport(t.Context(), "nobody", 1, nil, nil, store.ImportSpent{})
	wantError(t, err, store.ErrClaimLost)
	if tools, _ := b.Tools(t.Context(), ""); len(tools) != 0 {
		t.Errorf("%d tools were written by an import that had lost its claim", len(tools))
	}
	if all, _ := b.ImportErrors(t.Context(), store.ImportErrorFilter{}); len(all) != 0 {
		t.Errorf("%d errors were written by an import that had lost its claim", len(all))
	}
	b.settleImport("docs", second.Claim, tool("docs", "search"))
	_, err = b.SettleImport(t.Context(), "docs", first.Claim, nil, nil, store.ImportSpent{})
	wantError(t, err, store.ErrClaimLost)
}

func TestImportSettledAgainAfterALostReply(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claim := b.claimImport("docs").Claim
	skipped := []store.SkippedTool{{Name: "odd", Reason: "no schema"}}
	for i, want := range []store.ImportReport{{Imported: 1, Skipped: 1}, {Unchanged: 1, Skipped: 1}} {
		report, err := b.SettleImport(t.Context(), "docs", claim, []store.ImportedTool{tool("docs", "search")}, skipped, store.ImportSpent{})
		if err != nil {
			t.Fatal(err)
		}
		diff(t, fmt.Sprintf("report %d", i+1), want, report)
	}
	if n := ask[int](b, `select count(*) from import_error`); n != 1 {
		t.Errorf("%d rows about the skipped tool, want 1", n)
	}

	claim = b.claimImport("docs").Claim
	for range 2 {
		if err := b.FailImport(t.Context(), "docs", claim, store.Failure{Kind: "unreachable", Message: "x", Asked: "no"}, store.ImportSpent{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := ask[int](b, `select count(*) from import_error where kind = 'unreachable'`); n != 1 {
		t.Errorf("%d rows about the failure, want 1", n)
	}
}

func TestSettleImport(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	search := tool("docs", "search")
	bare := store.ImportedTool{Name: "mcp_docs_bare", HashedName: "mcp_docs_bare_1", RemoteName: "bare"}
	diff(t, "report", store.ImportReport{Imported: 2}, b.importTools("docs", search, bare))
	got := b.tool("mcp_docs_search")
	diff(t, "tool", store.Tool{
		Name: "mcp_docs_search", Server: "docs", RemoteName: "search", Title: "The search", Description: "does search",
		InputSchema: json.RawMessage(`{ "type":"object" }`), Annotations: json.RawMessage(`{"readOnlyHint":true}`),
		Effect: "non_idempotent_write", ImportedAt: got.ImportedAt, UpdatedAt: got.UpdatedAt,
	}, got)
	server, err := b.Server(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	if server.ImportStatus != "ok" || server.LastImportedAt == nil || server.ToolCount != 2 {
		t.Errorf("server %+v, want an import of two tools that went well", server)
	}
	if claimed := ask[bool](b, `select import_claimed_by is not null or import_lease_expires_at is not null from mcp_server`); claimed {
		t.Error("the import still holds its lease")
	}

	search.Description = "does it better"
	search.InputSchema = json.RawMessage(`{"type":"object"}`)
	diff(t, "report of the second import", store.ImportReport{Imported: 1, Changed: 1, Orphaned: 1},
		b.importTools("docs", search, tool("docs", "fetch")))
	if got := b.tool("mcp_docs_search"); got.Description != "does it better" || string(got.InputSchema) != `{"type":"object"}` {
		t.Errorf("tool %+v, want the change", got)
	}
	if server, _ := b.Server(t.Context(), "docs"); server.ToolCount != 2 {
		t.Errorf("tool count %d, want 2: an orphan does not count", server.ToolCount)
	}
}

func TestUnchangedToolsAreNotWritten(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	search, bare := tool("docs", "search"), store.ImportedTool{Name: "mcp_docs_bare", HashedName: "x", RemoteName: "bare"}
	search.ModelSchema, search.NotCallable = json.RawMessage(`{"type":"object","properties":{}}`), "it is out of order"
	bare.NotOffered = "its schema is odd"
	b.importTools("docs", search, bare)
	if err := b.SetToolEnabled(t.Context(), "mcp_docs_search", true); err != nil {
		t.Fatal(err)
	}
	versions := func() []string {
		return ask[[]string](b, `select array_agg(name || ' ' || xmin::text || ' ' || xmax::text || ' ' || ctid::text order by name) from mcp_tool`)
	}
	before := versions()
	diff(t, "report", store.ImportReport{Unchanged: 2}, b.importTools("docs", search, bare))
	diff(t, "row versions", before, versions())
	for _, next := range []struct { // in an order that stays: each goes on from the one before, and no schema stands beside a reason for none
		name   string
		change func()
	}{
		{"title", func() { search.Title = "changed" }},
		{"model schema", func() { search.ModelSchema = json.RawMessage(`{"type":"object","properties":{"q":{}}}`) }},
		{"no model schema", func() { search.ModelSchema = nil }},
		{"not offered", func() { search.NotOffered = "it cannot be called" }},
		{"not callable", func() { search.NotCallable = "it is still out of order" }},
	} {
		before := versions()
		next.change()
		diff(t, "report of a change of the "+next.name, store.ImportReport{Unchanged: 1, Changed: 1}, b.importTools("docs", search, bare))
		after := versions()
		if before[0] != after[0] || before[1] == after[1] {
			t.Errorf("%s: row versions %v, then %v; want only that of search to change", next.name, before, after)
		}
	}
}

// What an import found out for models, and no longer holds, goes.
func TestWhatModelsAreToldOfATool(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	search, odd := tool("docs", "search"), tool("docs", "odd")
	search.ModelSchema = json.RawMessage(`{"type":"object","properties":{"q":{"default":9007199254740993}}}`)
	odd.NotOffered, odd.NotCallable = "it runs \"only\" as a task\x00", "it runs \"only\" as a task\x00"
	diff(t, "report", store.ImportReport{Imported: 2}, b.importTools("docs", search, odd))
	told := func(name string) []string {
		t.Helper()
		got := b.tool(name)
		return []string{string(got.ModelSchema), got.NotOffered, got.NotCallable}
	}
	diff(t, "a tool that is offered", []string{string(search.ModelSchema), "", ""}, told("mcp_docs_search"))
	diff(t, "one that is not", []string{"", "it runs \"only\" as a task\uFFFD", "it runs \"only\" as a task\uFFFD"}, told("mcp_docs_odd"))

	search.ModelSchema, search.NotOffered = nil, "its schema is odd"
	odd.ModelSchema, odd.NotOffered, odd.NotCallable = json.RawMessage(`{"type":"object"}`), "", ""
	diff(t, "report of the second import", store.ImportReport{Changed: 2}, b.importTools("docs", search, odd))
	diff(t, "a tool that is not offered any more", []string{"", "its schema is odd", ""}, told("mcp_docs_search"))
	diff(t, "one that is now", []string{`{"type":"object"}`, "", ""}, told("mcp_docs_odd"))

	// Half of an emoji is kept as the server wrote it, and not told to a model.
	odd.InputSchema, odd.ModelSchema = json.RawMessage(`{"title":"\ud83d"}`), json.RawMessage(`{"title":"\ud83d"}`)
	b.importTools("docs", search, odd)
	diff(t, "half of an emoji", []string{`{"title":"\ufffd"}`, "", ""}, told("mcp_docs_odd"))
	diff(t, "as it was advertised", `{"title":"\ud83d"}`, string(b.tool("mcp_docs_odd").InputSchema))
	diff(t, "report of the same again", store.ImportReport{Unchanged: 2}, b.importTools("docs", search, odd))
}

// Rows of before the columns were there are filled by the next import.
func TestAnImportFillsWhatAnOlderOneDidNotKnow(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	search := tool("docs", "search")
	search.ModelSchema = json.RawMessage(`{"type":"object","properties":{}}`)
	b.importTools("docs", search)
	b.exec(`update mcp_tool set model_schema = null, enabled = true`)
	diff(t, "report", store.ImportReport{Changed: 1}, b.importTools("docs", search))
	if got := b.tool("mcp_docs_search"); string(got.ModelSchema) != string(search.ModelSchema) || !got.Enabled {
		t.Errorf("tool %+v, want the schema and its setting", got)
	}
}

func TestAToolThatReturnsKeepsItsSettings(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addServer("crm")
	b.importTools("crm", tool("crm", "search"))
	b.importTools("docs", tool("docs", "search"))
	if err := b.SetToolEnabled(t.Context(), "mcp_docs_search", true); err != nil {
		t.Fatal(err)
	}
	if err := b.SetToolEffect(t.Context(), "mcp_docs_search", "read_only"); err != nil {
		t.Fatal(err)
	}
	first := b.tool("mcp_docs_search")

	diff(t, "report when it vanishes", store.ImportReport{Orphaned: 1}, b.importTools("docs"))
	orphan := b.tool("mcp_docs_search")
	if orphan.OrphanedAt == nil || !orphan.Enabled || orphan.Effect != "read_only" {
		t.Errorf("orphan %+v, want it marked and its settings kept", orphan)
	}
	diff(t, "report when it stays away", store.ImportReport{}, b.importTools("docs"))
	diff(t, "the orphan", orphan, b.tool("mcp_docs_search"))
	if other := b.tool("mcp_crm_search"); other.OrphanedAt != nil {
		t.Error("another server's tool was orphaned")
	}

	changed := tool("docs", "search")
	changed.Name, changed.HashedName, changed.Title = "mcp_docs_other", "mcp_docs_other_1", "New" // the row's name stands
	diff(t, "report when it returns", store.ImportReport{Revived: 1}, b.importTools("docs", changed))
	got := b.tool("mcp_docs_search")
	want := first
	want.Title, want.UpdatedAt = "New", got.UpdatedAt
	diff(t, "the tool", want, got)
}

func TestToolsOfTwoServersThatWantOneName(t *testing.T) {
	b := newBench(t)
	b.addServer("a")
	b.addServer("a_b")
	b.importTools("a", tool("a", "b_c"))
	second := tool("a_b", "c")
	second.HashedName = "mcp_a_b_c_ffffffff"
	b.importTools("a_b", second)
	if got := b.tool("mcp_a_b_c"); got.Server != "a" || got.RemoteName != "b_c" {
		t.Errorf("mcp_a_b_c is %s of %s, want that of the server that came first", got.RemoteName, got.Server)
	}
	if got := b.tool("mcp_a_b_c_ffffffff"); got.Server != "a_b" || got.RemoteName != "c" {
		t.Errorf("the hashed name is %s of %s", got.RemoteName, got.Server)
	}
	// Names are for good, also once the plain one is free.
	if err := b.RemoveServer(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	diff(t, "report", store.ImportReport{Unchanged: 1}, b.importTools("a_b", second))

	// With both names taken there is none left.
	b.addServer("a")
	third, fourth := tool("a", "b_c"), tool("a", "fine")
	third.HashedName = "mcp_a_b_c_ffffffff"
	diff(t, "report when one name is free", store.ImportReport{Imported: 2}, b.importTools("a", third, fourth))
	b.exec(`update mcp_tool set remote_name = 'renamed' where name = 'mcp_a_b_c'`)
	diff(t, "report when none is", store.ImportReport{Unchanged: 1, Skipped: 1, Orphaned: 1}, b.importTools("a", third, fourth))
}

// So many that they are written by several statements.
func TestManyTools(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	tools := make([]store.ImportedTool, 300)
	wantRows := func(title string) {
		t.Helper()
		for i := range tools {
			tools[i] = tool("docs", fmt.Sprintf("t%d", (i+150)%len(tools))) // not in order of the names
			tools[i].Title = fmt.Sprintf("%s %d", title, i)
			tools[i].ModelSchema = json.RawMessage(fmt.Sprintf(`{"type":"object","title":"%s %d"}`, title, i))
			if i%2 == 0 {
				tools[i].InputSchema = tools[i].ModelSchema
			}
		}
		report := b.importTools("docs", tools...)
		if n := report.Imported + report.Changed; n != len(tools) {
			t.Errorf("%+v, want all %d written", report, len(tools))
		}
		got := make(map[string]store.Tool)
		all, err := b.Tools(t.Context(), "docs")
		if err != nil || len(all) != len(tools) {
			t.Fatalf("%d tools, %v, want %d", len(all), err, len(tools))
		}
		for _, row := range all {
			got[row.Name] = row
		}
		for _, want := range tools {
			row := got[want.Name]
			diff(t, want.Name, []string{want.RemoteName, want.Title, string(want.InputSchema), string(want.ModelSchema)},
				[]string{row.RemoteName, row.Title, string(row.InputSchema), string(row.ModelSchema)})
		}
	}
	wantRows("new")
	wantRows("changed")
	diff(t, "report of the same again", store.ImportReport{Unchanged: len(tools)}, b.importTools("docs", tools...))
}

func TestImportsOfTwoServersThatWantOneNameAtOnce(t *testing.T) {
	b := newBench(t)
	servers := []string{"a", "b", "c", "d"}
	for _, server := range servers {
		b.addServer(server)
	}
	var wg sync.WaitGroup
	for i, server := range servers {
		claim := b.claimImport(server).Claim
		wg.Go(func() {
			var tools []store.ImportedTool
			for n := range 20 {
				at := n
				if i%2 == 1 {
					at = 19 - n // the other way round
				}
				tools = append(tools, store.ImportedTool{RemoteName: fmt.Sprintf("t%d", at), Name: fmt.Sprintf("shared_%d", at), HashedName: fmt.Sprintf("%s_%d", server, at)})
			}
			report, err := b.SettleImport(t.Context(), server, claim, tools, nil, store.ImportSpent{})
			if err != nil || report.Imported != 20 {
				t.Errorf("%s: %+v, %v, want 20 imported", server, report, err)
			}
		})
	}
	wg.Wait()
	if n := ask[int](b, `select count(*) from mcp_tool where name like 'shared%'`); n != 20 {
		t.Errorf("%d plain names are in use, want 20", n)
	}
}

func TestSkippedTools(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	search := tool("docs", "search")
	second := search
	second.Title = "again"
	report, err := b.SettleImport(t.Context(), "docs", b.claimImport("docs").Claim, []store.ImportedTool{search, second},
		[]store.SkippedTool{{Name: "odd\x00", Reason: "its schema is \"\xff\""}},
		store.ImportSpent{BudgetMS: 20000, Legs: []byte(`[{"method":"tools/list"}]`), TaskID: "task-1"})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "report", store.ImportReport{Imported: 1, Skipped: 2}, report)
	if got := b.tool("mcp_docs_search"); got.Title != "The search" {
		t.Errorf("title %q, want that of the first", got.Title)
	}
	all, err := b.ImportErrors(t.Context(), store.ImportErrorFilter{Server: "docs"})
	if err != nil || len(all) != 2 {
		t.Fatalf("import errors %v, %v, want 2", all, err)
	}
	diff(t, "the row", store.ImportError{
		ID: all[1].ID, Server: "docs", Kind: "tool_skipped", Tool: "odd\uFFFD", Message: "its schema is \"\uFFFD\"", Asked: "yes",
		BudgetMS: ptr(int64(20000)), Legs: json.RawMessage(`[{"method":"tools/list"}]`), TaskID: "task-1", OccurredAt: all[1].OccurredAt,
	}, all[1])
	if all[0].Tool != "search" || !strings.Contains(all[0].Message, "more than once") {
		t.Errorf("the tool listed twice left %+v", all[0])
	}
	server, _ := b.Server(t.Context(), "docs")
	if server.ImportStatus != "partial" || server.ToolCount != 1 {
		t.Errorf("server %+v, want a partial import of 1 tool", server)
	}
	// Skipped this time: what is known about the tool no longer holds.
	report, err = b.SettleImport(t.Context(), "docs", b.claimImport("docs").Claim, nil,
		[]store.SkippedTool{{Name: "search", Reason: "its schema is too large"}}, store.ImportSpent{})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "report when it is skipped later", store.ImportReport{Skipped: 1, Orphaned: 1}, report)
}

func TestFailImportLeavesTheCatalogue(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.importTools("docs", tool("docs", "search"))
	before, _ := b.Server(t.Context(), "docs")
	tools, _ := b.Tools(t.Context(), "docs")
	failure := store.Failure{Kind: "budget_spent", Message: "server \"docs\" was not asked\x00", Asked: "no"}
	if err := b.FailImport(t.Context(), "docs", b.claimImport("docs").Claim, failure,
		store.ImportSpent{BudgetMS: 20000, Legs: []byte(`[]`), TaskID: "task-1"}); err != nil {
		t.Fatal(err)
	}
	after, _ := b.Server(t.Context(), "docs")
	want := before
	want.ImportStatus = "error"
	diff(t, "server", want, after)
	again, _ := b.Tools(t.Context(), "docs")
	diff(t, "tools", tools, again)
	all, _ := b.ImportErrors(t.Context(), store.ImportErrorFilter{})
	if len(all) != 1 {
		t.Fatalf("%d import errors, want 1", len(all))
	}
	diff(t, "row", store.ImportError{
		ID: all[0].ID, Server: "docs", Kind: "budget_spent", Message: "server \"docs\" was not asked\uFFFD", Asked: "no",
		BudgetMS: ptr(int64(20000)), Legs: json.RawMessage(`[]`), TaskID: "task-1", OccurredAt: all[0].OccurredAt,
	}, all[0])
	if next := b.claimImport("docs"); next.Busy {
		t.Error("the failed import still holds its lease")
	}
}

func TestFailImportThatWasNeverClaimed(t *testing.T) {
	b := newBench(t)
	b.addServer("off", func(s *store.Server) { s.Enabled = false })
	for _, server := range []string{"nobody", "off", ""} {
		if err := b.FailImport(t.Context(), server, 0, store.Failure{Kind: "invalid_request", Message: "x", Asked: "no"}, store.ImportSpent{}); err != nil {
			t.Errorf("%q: %v", server, err)
		}
	}
	all, _ := b.ImportErrors(t.Context(), store.ImportErrorFilter{})
	var servers []string
	for _, e := range all {
		servers = append(servers, e.Server)
	}
	diff(t, "servers, newest first", []string{"", "off", "nobody"}, servers)
	if server, _ := b.Server(t.Context(), "off"); server.ImportStatus != "never_imported" {
		t.Errorf("import status %q, want it untouched", server.ImportStatus)
	}
	limited, _ := b.ImportErrors(t.Context(), store.ImportErrorFilter{Limit: 1})
	if len(limited) != 1 || limited[0].Server != "" {
		t.Errorf("the newest is %+v", limited)
	}
}

func TestNastyTextLosesNoTool(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	var tools []store.ImportedTool
	for name, text := range nasty {
		tools = append(tools, store.ImportedTool{Name: fmt.Sprintf("t%d", len(tools)), HashedName: fmt.Sprintf("h%d", len(tools)),
			RemoteName: name + text, Title: text, Description: text, NotOffered: text, NotCallable: text})
	}
	for name, raw := range nastyJSON {
		tools = append(tools, store.ImportedTool{Name: fmt.Sprintf("t%d", len(tools)), HashedName: fmt.Sprintf("h%d", len(tools)),
			RemoteName: name + " in a schema", InputSchema: []byte(raw), Annotations: []byte(raw), ModelSchema: []byte(raw)})
	}
	diff(t, "report", store.ImportReport{Imported: len(tools)}, b.importTools("docs", tools...))
	diff(t, "report of the same again", store.ImportReport{Unchanged: len(tools)}, b.importTools("docs", tools...))
}

// A task that asynq ended before its handler began comes again and again.
func TestFailImportOfOneTaskLeavesOneRow(t *testing.T) {
	b := newBench(t)
	spent := store.Failure{Kind: "budget_spent", Message: "x", Asked: "no"}
	for range 3 {
		if err := b.FailImport(t.Context(), "docs", 0, spent, store.ImportSpent{TaskID: "one"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.FailImport(t.Context(), "docs", 0, spent, store.ImportSpent{TaskID: "two"}); err != nil {
		t.Fatal(err)
	}
	diff(t, "rows", int64(2), ask[int64](b, `select count(*) from import_error`))
}

func TestASchemaIsKeptByteForByte(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	schema := `{"type":"object" , "default":"\u0000\ud800",` + "\n" + `"maximum":9007199254740993e0}`
	b.importTools("docs", store.ImportedTool{Name: "mcp_docs_search", RemoteName: "search", InputSchema: []byte(schema)})
	tool, err := b.Tool(t.Context(), "mcp_docs_search")
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "schema", schema, string(tool.InputSchema))
}

// An import that was under way when its server was removed must not settle the server that came after it.
func TestClaimsOfAServerThatWasRemovedAreNotTheNextOnes(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	old := b.claimImport("docs").Claim
	if err := b.RemoveServer(t.Context(), "docs"); err != nil {
		t.Fatal(err)
	}
	b.addServer("docs")
	current := b.claimImport("docs").Claim
	err := b.FailImport(t.Context(), "docs", old, store.Failure{Kind: "no_answer", Message: "x", Asked: "unknown"}, store.ImportSpent{})
	if !errors.Is(err, store.ErrClaimLost) {
		t.Errorf("the old import failed the new server: %v", err)
	}
	if _, err := b.SettleImport(t.Context(), "docs", old, nil, nil, store.ImportSpent{}); !errors.Is(err, store.ErrClaimLost) {
		t.Errorf("the old import settled the new server: %v", err)
	}
	if _, err := b.SettleImport(t.Context(), "docs", current, nil, nil, store.ImportSpent{}); err != nil {
		t.Errorf("the new import: %v", err)
	}
}
