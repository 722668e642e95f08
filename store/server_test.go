package store_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"legwork/store"
)

func TestServerComesBackAsItWasAdded(t *testing.T) {
	b := newBench(t)
	want := store.Server{
		Identifier: "docs", Name: "The docs", URL: "https://docs.example/mcp", Credential: "env:DOCS_TOKEN",
		AuthPlacement: "header", AuthHeaderName: "X-Key", DataClass: "internal", RequiresApproval: true, Enabled: true,
		OperationTimeoutSeconds: 30, ImportStatus: "never_imported",
	}
	if err := b.AddServer(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	got, err := b.Server(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	if got.CreatedAt.IsZero() || got.CreatedAt.Location() != time.UTC {
		t.Errorf("created at %v, want a time in UTC", got.CreatedAt)
	}
	want.CreatedAt, want.UpdatedAt = got.CreatedAt, got.UpdatedAt
	diff(t, "server", want, got)

	wantError(t, b.AddServer(t.Context(), want), store.ErrExists)
}

func TestServerDefaults(t *testing.T) {
	b := newBench(t)
	if err := b.AddServer(t.Context(), store.Server{Identifier: "docs", URL: "https://docs.example"}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Server(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	want := store.Server{Identifier: "docs", Name: "docs", URL: "https://docs.example", AuthPlacement: "none",
		ImportStatus: "never_imported", CreatedAt: got.CreatedAt, UpdatedAt: got.UpdatedAt}
	diff(t, "server", want, got)
}

func TestAddServerSaysWhatToChange(t *testing.T) {
	b := newBench(t)
	for name, test := range map[string]struct {
		change func(*store.Server)
		want   string
	}{
		"an identifier in capitals":  {func(s *store.Server) { s.Identifier = "Docs" }, "an identifier has 1 to 32 characters"},
		"no URL":                     {func(s *store.Server) { s.URL = "" }, "a URL is required"},
		"an unknown placement":       {func(s *store.Server) { s.AuthPlacement, s.Credential = "cookie", "env:A" }, "none, bearer or header"},
		"a bearer of nothing":        {func(s *store.Server) { s.AuthPlacement = "bearer" }, "need a credential"},
		"a credential without place": {func(s *store.Server) { s.Credential = "env:A" }, "placement none takes none"},
		"a header without a name":    {func(s *store.Server) { s.AuthPlacement, s.Credential = "header", "env:A" }, "needs a header name"},
		"a name without a header": {func(s *store.Server) {
			s.AuthPlacement, s.Credential, s.AuthHeaderName = "bearer", "env:A", "X"
		}, "no other placement takes one"},
		"a negative timeout": {func(s *store.Server) { s.OperationTimeoutSeconds = -1 }, "at least 1 second"},
	} {
		t.Run(name, func(t *testing.T) {
			server := store.Server{Identifier: "docs", URL: "https://docs.example"}
			test.change(&server)
			err := b.AddServer(t.Context(), server)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestInert(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		server store.Server
		want   string
	}{
		{store.Server{Identifier: "docs"}, `it is disabled: run "legwork server enable docs"`},
		{store.Server{Identifier: "docs", Enabled: true}, `it has no data class: run "legwork server set docs --data-class CLASS"`},
		{store.Server{Identifier: "docs", Enabled: true, DataClass: "public"}, ``},
	} {
		if got := test.server.Inert(); got != test.want {
			t.Errorf("%+v: %q, want %q", test.server, got, test.want)
		}
	}
}

func TestUpdateServerWritesOnlyWhatAnOperatorWrites(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	before, err := b.Server(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error {
		s.Identifier, s.ToolCount, s.ImportStatus = "other", 99, "ok"
		s.OperationTimeoutSeconds, s.DataClass, s.Enabled = 40, "", false
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := before
	want.OperationTimeoutSeconds, want.DataClass, want.Enabled, want.UpdatedAt = 40, "", false, got.UpdatedAt
	diff(t, "server", want, got)
	if !got.UpdatedAt.After(before.UpdatedAt) {
		t.Error("updated_at did not move")
	}
	_, err = b.UpdateServer(t.Context(), "nobody", func(*store.Server) error { return nil })
	wantError(t, err, store.ErrNotFound)
}

func TestUpdateServerThatIsDeclinedWritesNothing(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	declined := errors.New("not like this")
	_, err := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error {
		s.Name = "changed"
		return declined
	})
	if err != declined {
		t.Errorf("error %v, want the one of change itself", err)
	}
	if server, _ := b.Server(t.Context(), "docs"); server.Name != "docs" {
		t.Errorf("name %q, want it unchanged", server.Name)
	}
}

func TestUpdateServerLosesNoEdit(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	const edits = 8
	var wg sync.WaitGroup
	for range edits {
		wg.Go(func() {
			if _, err := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error {
				s.OperationTimeoutSeconds++
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if server, _ := b.Server(t.Context(), "docs"); server.OperationTimeoutSeconds != edits {
		t.Errorf("%d edits arrived, want %d", server.OperationTimeoutSeconds, edits)
	}
}

func TestRemoveServer(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addTool("docs", "search", "read_only")
	claim := b.claim(request("docs", "search"))
	if err := b.RemoveServer(t.Context(), "docs"); err != nil {
		t.Fatal(err)
	}
	_, err := b.Server(t.Context(), "docs")
	wantError(t, err, store.ErrNotFound)
	if tools, _ := b.Tools(t.Context(), ""); len(tools) != 0 {
		t.Errorf("%d tools are left", len(tools))
	}
	if step := b.settle(claim, succeeded); step.Server != "docs" {
		t.Errorf("the step's server is %q, want its name kept", step.Server)
	}
	wantError(t, b.RemoveServer(t.Context(), "docs"), store.ErrNotFound)
}

func TestRecordContacts(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addServer("crm")
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	record := func(contacts ...store.Contact) {
		t.Helper()
		if err := b.RecordContacts(t.Context(), contacts); err != nil {
			t.Fatal(err)
		}
	}
	want := func(identifier string, at time.Time, latency int64, revision string) {
		t.Helper()
		server, err := b.Server(t.Context(), identifier)
		if err != nil {
			t.Fatal(err)
		}
		if server.LastContactAt == nil || !server.LastContactAt.Equal(at) || *server.LastLatencyMS != latency || server.ProtocolVersion != revision {
			t.Errorf("%s: contact %v, latency %v, revision %q; want %v, %d, %q", identifier,
				server.LastContactAt, server.LastLatencyMS, server.ProtocolVersion, at, latency, revision)
		}
	}
	record()
	record(store.Contact{Server: "docs", At: noon, LatencyMS: 5, ProtocolVersion: "2025-06-18"},
		store.Contact{Server: "nobody", At: noon},
		store.Contact{Server: "crm", At: noon.Add(time.Second), LatencyMS: 8, ProtocolVersion: "2025-03-26"},
		store.Contact{Server: "crm", At: noon, LatencyMS: 7})
	want("docs", noon, 5, "2025-06-18")
	want("crm", noon.Add(time.Second), 8, "2025-03-26")

	record(store.Contact{Server: "docs", At: noon.Add(-time.Minute), LatencyMS: 9, ProtocolVersion: "2024-11-05"})
	want("docs", noon, 5, "2025-06-18") // late: never back

	record(store.Contact{Server: "docs", At: noon.Add(time.Minute), LatencyMS: 6})
	want("docs", noon.Add(time.Minute), 6, "2025-06-18") // the server did not say: what was known is kept
}

func TestManyWorkersRecordContacts(t *testing.T) {
	b := newBench(t)
	b.addServer("a")
	b.addServer("b")
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	const workers, rounds = 4, 25
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				contacts := []store.Contact{{Server: "a", At: noon.Add(time.Duration(i) * time.Second)}, {Server: "b", At: noon.Add(time.Duration(i) * time.Second)}}
				if w%2 == 0 {
					contacts[0], contacts[1] = contacts[1], contacts[0]
				}
				if err := b.RecordContacts(t.Context(), contacts); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if server, _ := b.Server(t.Context(), "a"); !server.LastContactAt.Equal(noon.Add((rounds - 1) * time.Second)) {
		t.Errorf("last contact %v, want the latest of all", server.LastContactAt)
	}
}

func TestServersShowTheLatestErrorUntilAnImportGoesWell(t *testing.T) {
	b := newBench(t)
	overview := func() store.ServerOverview {
		t.Helper()
		servers, err := b.Servers(t.Context())
		if err != nil || len(servers) != 1 {
			t.Fatalf("servers %v, %v, want one", servers, err)
		}
		return servers[0]
	}
	// An import of a server that is not there yet, or no longer, is not this one's error.
	if err := b.FailImport(t.Context(), "docs", 0, store.Failure{Kind: "invalid_request", Message: "unknown", Asked: "no"}, store.ImportSpent{}); err != nil {
		t.Fatal(err)
	}
	b.addServer("docs")
	if o := overview(); o.LatestErrorKind != "" {
		t.Errorf("error %q from before the server was added", o.LatestErrorMessage)
	}
	for _, message := range []string{"first", "second"} {
		if err := b.FailImport(t.Context(), "docs", b.claimImport("docs").Claim,
			store.Failure{Kind: "unreachable", Message: message, Asked: "no"}, store.ImportSpent{}); err != nil {
			t.Fatal(err)
		}
	}
	if o := overview(); o.LatestErrorKind != "unreachable" || o.LatestErrorMessage != "second" || o.LatestErrorAt == nil || o.ImportStatus != "error" {
		t.Errorf("overview %+v, want the second error", o)
	}
	b.importTools("docs", tool("docs", "search"))
	if o := overview(); o.LatestErrorKind != "" || o.LatestErrorMessage != "" || o.LatestErrorAt != nil || o.ImportStatus != "ok" {
		t.Errorf("overview %+v, want no error after an import that went well", o)
	}
	if _, err := b.SettleImport(t.Context(), "docs", b.claimImport("docs").Claim, nil,
		[]store.SkippedTool{{Name: "odd", Reason: "its schema is no object"}}, store.ImportSpent{}); err != nil {
		t.Fatal(err)
	}
	if o := overview(); o.LatestErrorKind != "" || o.ImportStatus != "partial" {
		t.Errorf("overview %+v, want a skipped tool not to count as the server's error", o)
	}
}

func TestWhatIsKnownOfAServerIsForgottenWithItsAddress(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	at := time.Now().Truncate(time.Microsecond)
	if err := b.RecordContacts(t.Context(), []store.Contact{{Server: "docs", At: at, ProtocolVersion: "2026-07-28"}}); err != nil {
		t.Fatal(err)
	}
	known, _ := b.Server(t.Context(), "docs")
	if known.ProtocolVersion != "2026-07-28" || known.ProtocolVersionAt == nil || !known.ProtocolVersionAt.Equal(at) {
		t.Errorf("learned %q at %v, want it at %v", known.ProtocolVersion, known.ProtocolVersionAt, at)
	}
	renamed, _ := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error { s.Name = "Docs"; return nil })
	if renamed.ProtocolVersion != "2026-07-28" {
		t.Errorf("a new name made it forget: %+v", renamed)
	}
	moved, _ := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error { s.URL = "https://elsewhere.example/mcp"; return nil })
	if moved.ProtocolVersion != "" || moved.ProtocolVersionAt != nil {
		t.Errorf("known at another address: %+v", moved)
	}
}
