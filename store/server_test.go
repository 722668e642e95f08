package store_test

import (
	"errors"
	"reflect"
	"slices"
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
		OperationTimeoutSeconds: 30, MaxInFlight: 9, ImportStatus: "never_imported",
		Headers:       map[string]string{"X-Tenant": `a "quoted" <b> & ü`, "CF-Access-Client-Secret": "env:CF_SECRET"},
		OAuthTokenURL: "https://login.example/token", OAuthClientID: "legwork", OAuthScope: "read write",
		OAuthParameters: map[string]string{"resource": "https://docs.example/mcp", "audience": "docs"}, OAuthSecretInBody: true,
		TLSCA: "file:/run/ca.pem", TLSCertificate: "file:/run/cert.pem", TLSKey: "env:KEY",
	}
	wantEveryOperatorField(t, want)
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
	listed, err := b.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "list", []store.ServerOverview{{Server: want}}, listed)
	if claim := b.claim(request("docs", "search")); claim.Server == nil {
		t.Error("the claim of a step has no server")
	} else {
		diff(t, "server of a step", want, *claim.Server)
	}

	wantError(t, b.AddServer(t.Context(), want), store.ErrExists)
}

// wantEveryOperatorField fails when a test that is about all that an operator writes leaves a field out.
func wantEveryOperatorField(t *testing.T, server store.Server) {
	t.Helper()
	learned := []string{
		"ProtocolVersion", "ProtocolVersionAt", "ImportStatus", "LastImportedAt", "ToolCount", "LastContactAt", "LastLatencyMS",
		"CreatedAt", "UpdatedAt",
	}
	value := reflect.ValueOf(server)
	for i := range value.NumField() {
		if name := value.Type().Field(i).Name; value.Field(i).IsZero() && !slices.Contains(learned, name) {
			t.Errorf("%s is not tried", name)
		}
	}
}

func TestServerSettingsAreChangedAndRemoved(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	update := func(change func(*store.Server)) store.Server {
		t.Helper()
		returned, err := b.UpdateServer(t.Context(), "docs", func(s *store.Server) error { change(s); return nil })
		if err != nil {
			t.Fatal(err)
		}
		read, err := b.Server(t.Context(), "docs")
		if err != nil {
			t.Fatal(err)
		}
		diff(t, "what is read after an update", returned, read)
		return read
	}
	bare := update(func(*store.Server) {})
	full := update(func(s *store.Server) {
		s.Name, s.URL, s.DataClass = "The docs", "https://other.example/mcp", "public"
		s.Credential, s.AuthPlacement, s.AuthHeaderName = "env:SECRET", "header", "X-Key"
		s.OperationTimeoutSeconds, s.MaxInFlight = 7, 3
		s.Headers = map[string]string{"b": "2", "a": "1"}
		s.OAuthTokenURL, s.OAuthClientID, s.OAuthScope = "https://login.example/token", "legwork", "read"
		s.OAuthParameters, s.OAuthSecretInBody = map[string]string{"b": "2", "a": "1"}, true
		s.TLSCA, s.TLSCertificate, s.TLSKey = "env:CA", "env:CERT", "env:KEY"
	})
	wantEveryOperatorField(t, full)
	for _, column := range []string{"headers", "oauth_parameters"} {
		if got := ask[string](b, `select `+column+`::text from mcp_server`); got != `{"a":"1","b":"2"}` {
			t.Errorf("%s is written as %s, want its names in order", column, got)
		}
	}

	empty := update(func(s *store.Server) {
		changed := s.UpdatedAt
		*s = bare
		s.UpdatedAt, s.Headers, s.OAuthParameters = changed, map[string]string{}, map[string]string{}
	})
	bare.UpdatedAt = empty.UpdatedAt
	diff(t, "server without them", bare, empty)
	if columns := ask[int](b, `select num_nulls(headers, oauth_token_url, oauth_client_id, oauth_scope, oauth_parameters,
		tls_ca, tls_certificate, tls_key) from mcp_server`); columns != 8 {
		t.Errorf("%d columns are null, want all 8 that hold nothing", columns)
	}
}

func TestServerSettingsThatWereWrittenByHand(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.exec(`update mcp_server set headers = '{"X-Number": 9007199254740993, "X-Flag": true, "X-None": null, "X-Text": "a\u0041"}'`)
	servers, err := b.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "headers", map[string]string{"X-Number": "9007199254740993", "X-Flag": "true", "X-Text": "aA"}, servers[0].Headers)
	b.exec(`update mcp_server set headers = '{"X-None": null}'`)
	if server, err := b.Server(t.Context(), "docs"); err != nil || server.Headers != nil {
		t.Errorf("headers %v, %v, want none", server.Headers, err)
	}
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
		"a negative limit":   {func(s *store.Server) { s.MaxInFlight = -1 }, "in flight must be at least 1"},
		"a negative timeout": {func(s *store.Server) { s.OperationTimeoutSeconds = -1 }, "at least 1 second"},
		"a token URL without a client": {func(s *store.Server) {
			s.AuthPlacement, s.Credential, s.OAuthTokenURL = "bearer", "env:A", "https://login.example"
		}, "a token URL and a client id belong together"},
		"a client without a token URL": {func(s *store.Server) { s.OAuthClientID = "legwork" }, "a token URL and a client id belong together"},
		"a scope for no token":         {func(s *store.Server) { s.OAuthScope = "read" }, "need a token URL"},
		"parameters for no token":      {func(s *store.Server) { s.OAuthParameters = map[string]string{"audience": "a"} }, "need a token URL"},
		"a secret in no body":          {func(s *store.Server) { s.OAuthSecretInBody = true }, "need a token URL"},
		"a client without a secret": {func(s *store.Server) {
			s.OAuthTokenURL, s.OAuthClientID = "https://login.example", "legwork"
		}, "a token URL needs a credential"},
		"a certificate without its key": {func(s *store.Server) { s.TLSCertificate = "env:CERT" }, "belong together"},
		"a key without its certificate": {func(s *store.Server) { s.TLSKey = "env:KEY" }, "belong together"},
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
