package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Server is a row of mcp_server: an MCP endpoint that an operator configured. Columns that are null read as the zero value.
type Server struct {
	Identifier              string `json:"identifier"`
	Name                    string `json:"name"`
	URL                     string `json:"url"`
	Credential              string `json:"credential"` // a reference, never a secret
	AuthPlacement           string `json:"auth_placement"`
	AuthHeaderName          string `json:"auth_header_name,omitempty"`
	DataClass               string `json:"data_class,omitempty"`
	RequiresApproval        bool   `json:"requires_approval"`
	Enabled                 bool   `json:"enabled"`
	OperationTimeoutSeconds int    `json:"operation_timeout_seconds,omitempty"` // 0 is none: the installation's holds
	MaxInFlight             int    `json:"max_in_flight,omitempty"`             // operations of one worker at once; 0 is none: a share of its concurrency

	Headers           map[string]string `json:"headers,omitempty"`         // further headers; a value may be a reference
	OAuthTokenURL     string            `json:"oauth_token_url,omitempty"` // empty: the credential is sent as it is
	OAuthClientID     string            `json:"oauth_client_id,omitempty"`
	OAuthScope        string            `json:"oauth_scope,omitempty"`
	OAuthParameters   map[string]string `json:"oauth_parameters,omitempty"`
	OAuthSecretInBody bool              `json:"oauth_secret_in_body,omitempty"`
	TLSCA             string            `json:"tls_ca,omitempty"` // references, as the two that follow; never PEM itself
	TLSCertificate    string            `json:"tls_certificate,omitempty"`
	TLSKey            string            `json:"tls_key,omitempty"`

	// What legwork learned; operators do not write it.
	ProtocolVersion   string     `json:"protocol_version,omitempty"` // empty: nobody has asked yet
	ProtocolVersionAt *time.Time `json:"protocol_version_at"`        // when it was last agreed on
	ImportStatus      string     `json:"import_status"`
	LastImportedAt    *time.Time `json:"last_imported_at"`
	ToolCount         int        `json:"tool_count"`
	LastContactAt     *time.Time `json:"last_contact_at"`
	LastLatencyMS     *int64     `json:"last_latency_ms"`
	CreatedAt         time.Time  `json:"created_at"`
	UpdatedAt         time.Time  `json:"updated_at"` // by an operator
}

// Inert says why nothing may be sent to the server, and what to run to change that; empty when the server is usable.
func (s Server) Inert() string {
	switch {
	case !s.Enabled:
		return fmt.Sprintf("it is disabled: run \"legwork server enable %s\"", s.Identifier)
	case s.DataClass == "":
		return fmt.Sprintf("it has no data class: run \"legwork server set %s --data-class CLASS\"", s.Identifier)
	}
	return ""
}

// ServerOverview is a row of mcp_server_overview: a server and the latest error of an import, empty once one went well.
type ServerOverview struct {
	Server
	LatestErrorKind    string     `json:"latest_error_kind,omitempty"`
	LatestErrorMessage string     `json:"latest_error_message,omitempty"`
	LatestErrorAt      *time.Time `json:"latest_error_at"`
}

// serverColumns are read into [Server.columns]. They may come from the empty side of a left join.
const serverColumns = `v.identifier, v.name, v.url, v.credential, v.auth_placement, v.auth_header_name, v.data_class,
	coalesce(v.requires_approval, false), coalesce(v.enabled, false), coalesce(v.operation_timeout_seconds, 0), coalesce(v.max_in_flight, 0),
	v.headers, v.oauth_token_url, v.oauth_client_id, v.oauth_scope, v.oauth_parameters, coalesce(v.oauth_secret_in_body, false),
	v.tls_ca, v.tls_certificate, v.tls_key,
	v.protocol_version, v.protocol_version_at, v.import_status, v.last_imported_at, coalesce(v.tool_count, 0), v.last_contact_at,
	v.last_latency_ms, v.created_at, v.updated_at`

func (s *Server) columns() []any {
	return []any{
		(*zeronull.Text)(&s.Identifier), (*zeronull.Text)(&s.Name), (*zeronull.Text)(&s.URL),
		(*zeronull.Text)(&s.Credential), (*zeronull.Text)(&s.AuthPlacement), (*zeronull.Text)(&s.AuthHeaderName),
		(*zeronull.Text)(&s.DataClass), &s.RequiresApproval, &s.Enabled, &s.OperationTimeoutSeconds, &s.MaxInFlight,
		(*texts)(&s.Headers), (*zeronull.Text)(&s.OAuthTokenURL), (*zeronull.Text)(&s.OAuthClientID),
		(*zeronull.Text)(&s.OAuthScope), (*texts)(&s.OAuthParameters), &s.OAuthSecretInBody,
		(*zeronull.Text)(&s.TLSCA), (*zeronull.Text)(&s.TLSCertificate), (*zeronull.Text)(&s.TLSKey),
		(*zeronull.Text)(&s.ProtocolVersion), &s.ProtocolVersionAt, (*zeronull.Text)(&s.ImportStatus), &s.LastImportedAt, &s.ToolCount,
		&s.LastContactAt, &s.LastLatencyMS, (*zeronull.Timestamptz)(&s.CreatedAt), (*zeronull.Timestamptz)(&s.UpdatedAt),
	}
}

func scanServer(row pgx.CollectableRow) (Server, error) {
	var s Server
	err := row.Scan(s.columns()...)
	return s, err
}

// orNil is the server, or nil when the left join found none.
func (s *Server) orNil() *Server {
	if s.Identifier == "" {
		return nil
	}
	return s
}

// texts is a column that holds a JSON object of texts; null where there are none.
type texts map[string]string

// UnmarshalJSON reads what was written by hand too: a value that is no text, such as a number, counts as its JSON, and a
// null as not there. One odd row must not keep every server from being read.
func (t *texts) UnmarshalJSON(data []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	*t = nil
	for name, member := range members {
		if string(member) == "null" {
			continue
		}
		value := string(member)
		if member[0] == '"' {
			if err := json.Unmarshal(member, &value); err != nil {
				return err
			}
		}
		if *t == nil {
			*t = texts{}
		}
		(*t)[name] = value
	}
	return nil
}

// column is the object with its names in order, so that what is the same is written the same.
func (t texts) column() json.RawMessage {
	if len(t) == 0 {
		return nil
	}
	clean := make(map[string]json.RawMessage, len(t))
	for name, value := range t {
		clean[cleanText(name)] = quoteJSON(value)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(clean); err != nil {
		panic(err) // strings always encode
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// AddServer inserts the columns that an operator writes, as they are given; an empty name is the identifier, an empty
// placement "none". The error is [ErrExists] when the identifier is taken; other bad values are told in a sentence.
func (s *Store) AddServer(ctx context.Context, server Server) error {
	_, err := s.pool.Exec(ctx, `
		insert into mcp_server (identifier, name, url, credential, auth_placement, auth_header_name, data_class,
			requires_approval, enabled, operation_timeout_seconds, max_in_flight, headers, oauth_token_url, oauth_client_id, oauth_scope,
			oauth_parameters, oauth_secret_in_body, tls_ca, tls_certificate, tls_key)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`,
		append([]any{cleanText(server.Identifier)}, server.operatorValues()...)...)
	if sqlState(err) == "23505" {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("add server %q: %w", server.Identifier, serverError(err))
	}
	return nil
}

// operatorValues are the columns that an operator writes, without the identifier.
func (s Server) operatorValues() []any {
	return []any{
		cleanText(cmp.Or(s.Name, s.Identifier)), cleanText(s.URL), cleanText(s.Credential), cmp.Or(s.AuthPlacement, "none"),
		zeronull.Text(cleanText(s.AuthHeaderName)), zeronull.Text(cleanText(s.DataClass)), s.RequiresApproval, s.Enabled,
		zeronull.Int8(s.OperationTimeoutSeconds), zeronull.Int8(s.MaxInFlight),
		texts(s.Headers).column(), zeronull.Text(cleanText(s.OAuthTokenURL)), zeronull.Text(cleanText(s.OAuthClientID)),
		zeronull.Text(cleanText(s.OAuthScope)), texts(s.OAuthParameters).column(), s.OAuthSecretInBody,
		zeronull.Text(cleanText(s.TLSCA)), zeronull.Text(cleanText(s.TLSCertificate)), zeronull.Text(cleanText(s.TLSKey)),
	}
}

// serverError puts the constraints of mcp_server into words.
func serverError(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.ConstraintName {
	case "mcp_server_identifier":
		return errors.New("an identifier has 1 to 32 characters, which are a-z, 0-9 and _")
	case "mcp_server_url":
		return errors.New("a URL is required")
	case "mcp_server_auth_placement":
		return errors.New("the credential's placement must be none, bearer or header")
	case "mcp_server_operation_timeout":
		return errors.New("the operation timeout must be at least 1 second")
	case "mcp_server_max_in_flight":
		return errors.New("the operations in flight must be at least 1")
	case "mcp_server_credential":
		return errors.New("placements bearer and header need a credential, and placement none takes none")
	case "mcp_server_auth_header_name":
		return errors.New("placement header needs a header name, and no other placement takes one")
	case "mcp_server_headers":
		return errors.New("the headers must be a JSON object of names and values")
	case "mcp_server_oauth_parameters":
		return errors.New("the parameters of the token request must be a JSON object of names and values")
	case "mcp_server_oauth":
		return errors.New("a token URL and a client id belong together: give both, or neither")
	case "mcp_server_oauth_settings":
		return errors.New("a scope, parameters or a secret in the body of the token request need a token URL")
	case "mcp_server_oauth_secret":
		return errors.New("a token URL needs a credential, the client's secret, and placement bearer or header")
	case "mcp_server_tls":
		return errors.New("a client certificate and its key belong together: give both, or neither")
	}
	return err
}

// UpdateServer lets change edit the server and writes back the columns that an operator writes; edits to the others,
// the identifier among them, are ignored. The row is locked meanwhile, so two updates never lose each other's edits. An
// error of change is returned as it is and nothing is written. The server as it then stands is returned; [ErrNotFound].
func (s *Store) UpdateServer(ctx context.Context, identifier string, change func(*Server) error) (Server, error) {
	identifier = cleanText(identifier)
	var updated Server
	var declined error
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		server, err := lockServer(ctx, tx, identifier)
		if err != nil {
			return err
		}
		if declined = change(&server); declined != nil {
			return declined
		}
		server.Identifier = identifier
		updated, err = writeServer(ctx, tx, server)
		return err
	})
	if declined != nil {
		return Server{}, declined
	}
	if err != nil {
		return Server{}, fmt.Errorf("update server %q: %w", identifier, serverError(err))
	}
	return updated, nil
}

// lockServer leaves the key unlocked: it never changes, and the rows that refer to it need not wait.
func lockServer(ctx context.Context, tx pgx.Tx, identifier string) (Server, error) {
	rows, err := tx.Query(ctx, `select `+serverColumns+` from mcp_server v where v.identifier = $1 for no key update`, identifier)
	return one(rows, err, scanServer)
}

func writeServer(ctx context.Context, tx pgx.Tx, server Server) (Server, error) {
	rows, err := tx.Query(ctx, `
		update mcp_server v
		set name = $2, url = $3, credential = $4, auth_placement = $5, auth_header_name = $6, data_class = $7,
			requires_approval = $8, enabled = $9, operation_timeout_seconds = $10, max_in_flight = $11, headers = $12,
			oauth_token_url = $13, oauth_client_id = $14, oauth_scope = $15, oauth_parameters = $16, oauth_secret_in_body = $17,
			tls_ca = $18, tls_certificate = $19, tls_key = $20, updated_at = clock_timestamp(),
			-- At another address there may be another server, of which nothing is known.
			protocol_version = case when url = $3 then protocol_version end,
			protocol_version_at = case when url = $3 then protocol_version_at end
		where identifier = $1
		returning `+serverColumns,
		append([]any{server.Identifier}, server.operatorValues()...)...)
	return one(rows, err, scanServer)
}

// Server returns one server; [ErrNotFound].
func (s *Store) Server(ctx context.Context, identifier string) (Server, error) {
	rows, err := s.pool.Query(ctx, `select `+serverColumns+` from mcp_server v where v.identifier = $1`, cleanText(identifier))
	server, err := one(rows, err, scanServer)
	if err != nil {
		return Server{}, fmt.Errorf("read server %q: %w", identifier, err)
	}
	return server, nil
}

// MaxInFlight returns how many operations one worker may have under way with each of these servers; 0: its row says nothing
// of that. Servers that there are not are left out.
func (s *Store) MaxInFlight(ctx context.Context, identifiers []string) (map[string]int, error) {
	rows, err := s.pool.Query(ctx, `
		select identifier, coalesce(max_in_flight, 0) from mcp_server where identifier = any($1)`, identifiers)
	if err != nil {
		return nil, fmt.Errorf("read the limits of servers: %w", err)
	}
	limits := map[string]int{}
	var identifier string
	var limit int
	if _, err := pgx.ForEachRow(rows, []any{&identifier, &limit}, func() error {
		limits[identifier] = limit
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the limits of servers: %w", err)
	}
	return limits, nil
}

// Servers returns every server with its latest error, by identifier.
func (s *Store) Servers(ctx context.Context) ([]ServerOverview, error) {
	rows, err := s.pool.Query(ctx, `
		select `+serverColumns+`, v.latest_error_kind, v.latest_error_message, v.latest_error_at
		from mcp_server_overview v
		order by v.identifier`)
	if err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	servers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ServerOverview, error) {
		var o ServerOverview
		err := row.Scan(append(o.Server.columns(),
			(*zeronull.Text)(&o.LatestErrorKind), (*zeronull.Text)(&o.LatestErrorMessage), &o.LatestErrorAt)...)
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	return servers, nil
}

// RemoveServer deletes the server and its tools; steps and import errors stay. [ErrNotFound].
func (s *Store) RemoveServer(ctx context.Context, identifier string) error {
	tag, err := s.pool.Exec(ctx, `delete from mcp_server where identifier = $1`, cleanText(identifier))
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("remove server %q: %w", identifier, err)
	}
	return nil
}

// Contact is one completed operation with a server.
type Contact struct {
	Server          string
	At              time.Time
	LatencyMS       int64  // of the leg that ended the operation
	ProtocolVersion string // empty when the server never said: what was known is kept
}

// RecordContacts writes what is newer than the rows: a contact that comes late never moves last_contact_at back. Servers
// that are unknown are passed over.
func (s *Store) RecordContacts(ctx context.Context, contacts []Contact) error {
	if len(contacts) == 0 {
		return nil
	}
	servers := make([]string, len(contacts))
	times := make([]time.Time, len(contacts))
	latencies := make([]int64, len(contacts))
	revisions := make([]string, len(contacts))
	for i, contact := range contacts {
		servers[i], times[i] = cleanText(contact.Server), contact.At
		latencies[i], revisions[i] = contact.LatencyMS, cleanText(contact.ProtocolVersion)
	}
	// Locked in the order of their names, so that two workers with the same servers at hand cannot deadlock.
	_, err := s.pool.Exec(ctx, `
		with contact as (
			select distinct on (server) server, made_at, latency_ms, protocol_version
			from unnest($1::text[], $2::timestamptz[], $3::bigint[], $4::text[])
				as c (server, made_at, latency_ms, protocol_version)
			order by server, made_at desc
		), locked as (
			select v.identifier
			from mcp_server v
			where v.identifier = any ($1::text[])
			order by v.identifier
			for no key update
		)
		update mcp_server v
		set last_contact_at = c.made_at, last_latency_ms = c.latency_ms,
			protocol_version = coalesce(nullif(c.protocol_version, ''), v.protocol_version),
			protocol_version_at = case when c.protocol_version <> '' then c.made_at else v.protocol_version_at end
		from locked
		join contact c on c.server = locked.identifier
		where v.identifier = locked.identifier
			and (v.last_contact_at is null or v.last_contact_at < c.made_at)`,
		servers, times, latencies, revisions)
	if err != nil {
		return fmt.Errorf("record contacts with %d servers: %w", len(contacts), err)
	}
	return nil
}
