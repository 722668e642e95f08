package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// kindToolSkipped marks an import_error row about one tool, in an import that went well otherwise.
const kindToolSkipped = "tool_skipped"

// ImportRequest asks for the right to import one server's catalogue.
type ImportRequest struct {
	Server string
	Worker string         // who claims
	Budget time.Duration  // the installation's, per operation
	Job    *time.Duration // what the job's own deadline leaves; nil: it has none
	Margin time.Duration  // what settling may take beyond the operation
}

// ImportClaim is the answer to [Store.ClaimImport].
type ImportClaim struct {
	Server         *Server    // nil: there is no such server
	Claim          int64      // the number to settle with; 0: nothing was claimed
	Busy           bool       // another import of the server runs
	LeaseExpiresAt *time.Time // when that one, or this one, is over at the latest
}

// ClaimImport takes the server's import for this worker, so that two imports of one server never run at once. Nothing is
// claimed when the server is unknown (Server is nil), when it is inert (see [Server.Inert]) or while another import runs
// (Busy).
func (s *Store) ClaimImport(ctx context.Context, request ImportRequest) (ImportClaim, error) {
	for range claimRounds {
		claim, err := s.claimImport(ctx, request)
		if errors.Is(err, ErrNotFound) { // the guard let nothing through
			claim, err = s.importUnclaimed(ctx, request.Server)
		}
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return ImportClaim{}, fmt.Errorf("claim the import of server %q: %w", request.Server, err)
		}
		return claim, nil
	}
	return ImportClaim{}, fmt.Errorf("claim the import of server %q: its row changed %d times meanwhile",
		request.Server, claimRounds)
}

func (s *Store) claimImport(ctx context.Context, request ImportRequest) (ImportClaim, error) {
	rows, err := s.pool.Query(ctx, `
		update mcp_server v
		set import_claim = nextval('mcp_server_import_claim'), import_claimed_by = $2,
			import_lease_expires_at = clock_timestamp() + $5::interval + greatest(interval '0', least($4::interval, coalesce(
				make_interval(secs => v.operation_timeout_seconds), $3::interval)))
		where v.identifier = $1 and v.enabled and v.data_class is not null
			and (v.import_lease_expires_at is null or v.import_lease_expires_at <= clock_timestamp())
		returning `+serverColumns+`, v.import_claim, v.import_lease_expires_at`,
		cleanText(request.Server), cmp.Or(cleanText(request.Worker), "unnamed worker"), request.Budget, request.Job,
		max(request.Margin, 0))
	return one(rows, err, func(row pgx.CollectableRow) (ImportClaim, error) {
		var claim ImportClaim
		var server Server
		err := row.Scan(append(server.columns(), &claim.Claim, &claim.LeaseExpiresAt)...)
		claim.Server = &server
		return claim, err
	})
}

// importUnclaimed tells why an import could not be claimed; errAgain when a claim may well succeed by now.
func (s *Store) importUnclaimed(ctx context.Context, server string) (ImportClaim, error) {
	rows, err := s.pool.Query(ctx, `
		select `+serverColumns+`, coalesce(v.import_lease_expires_at > clock_timestamp(), false), v.import_lease_expires_at
		from mcp_server v
		where v.identifier = $1`, cleanText(server))
	claim, err := one(rows, err, func(row pgx.CollectableRow) (ImportClaim, error) {
		var claim ImportClaim
		var server Server
		err := row.Scan(append(server.columns(), &claim.Busy, &claim.LeaseExpiresAt)...)
		claim.Server = &server
		return claim, err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return ImportClaim{}, nil
	case err != nil:
		return ImportClaim{}, err
	case claim.Server.Inert() != "":
		return ImportClaim{Server: claim.Server}, nil
	case claim.Busy:
		return claim, nil
	}
	return ImportClaim{}, errAgain
}

// ImportedTool is a tool as the server advertised it.
type ImportedTool struct {
	Name        string // in this installation, in its plain form
	HashedName  string // what a new tool takes when another row has the plain one
	RemoteName  string // as sent on the wire
	Title       string
	Description string
	InputSchema json.RawMessage
	Annotations json.RawMessage
	ModelSchema json.RawMessage // as in [Tool]; not beside NotOffered
	NotOffered  string          // empty: it may be offered
	NotCallable string          // empty: it can be called
}

// SkippedTool is a tool that the server advertised and that cannot be imported.
type SkippedTool struct {
	Name   string
	Reason string // a sentence
}

// ImportSpent is the account of an import, answered or not.
type ImportSpent struct {
	BudgetMS int64           // 0: no operation was begun
	Legs     json.RawMessage // a JSON array; empty: no leg was sent
	TaskID   string
}

// ImportReport counts what an import did. Imported, Changed, Unchanged and Revived add up to the live tools.
type ImportReport struct {
	Imported  int `json:"imported"` // new here
	Changed   int `json:"changed"`
	Unchanged int `json:"unchanged"`
	Skipped   int `json:"skipped"`
	Revived   int `json:"revived"`  // had vanished and returned
	Orphaned  int `json:"orphaned"` // vanished in this import
}

// settleRounds bounds how often an import is settled anew because another server's import took a name meanwhile.
const settleRounds = 5

// SettleImport makes the catalogue what the server advertised, in one transaction. A row keeps its name and its operator's
// settings, whatever the server says; a row that did not change is not written. A tool that vanished, or was skipped this
// time, is marked orphaned; one that returns is revived. A tool that is listed twice, or finds both of its names taken, is
// skipped. Each skipped tool leaves an import_error row.
//
// The error is [ErrClaimLost] when another import has begun since; then nothing is written. A claim settles once: settling
// again with it, after a reply that was lost, changes nothing and reports the catalogue as unchanged.
func (s *Store) SettleImport(ctx context.Context, server string, claim int64, tools []ImportedTool, skipped []SkippedTool,
	spent ImportSpent) (ImportReport, error) {
	server = cleanText(server)
	tools, skipped = cleanCatalogue(tools, skipped)
	var report ImportReport
	var err error
	for range settleRounds {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var err error
			report, err = settleImport(ctx, tx, server, claim, tools, skipped, spent)
			return err
		})
		// Names are unique over all servers: another import took one of ours (23505), or waited for us as we for it (40P01).
		if state := sqlState(err); state != "23505" && state != "40P01" {
			break
		}
	}
	if errors.Is(err, ErrClaimLost) {
		report, err = s.importSettledBefore(ctx, server, claim, len(skipped))
	}
	if err != nil {
		return ImportReport{}, fmt.Errorf("settle the import of server %q: %w", server, err)
	}
	return report, nil
}

// importSettledBefore is the report of an import that this very claim settled before; [ErrClaimLost] when it did not.
func (s *Store) importSettledBefore(ctx context.Context, server string, claim int64, skipped int) (ImportReport, error) {
	report := ImportReport{Skipped: skipped}
	err := s.pool.QueryRow(ctx, `
		select tool_count
		from mcp_server
		where identifier = $1 and import_claim = $2 and $2 > 0 and import_lease_expires_at is null`,
		cleanText(server), claim).Scan(&report.Unchanged)
	if errors.Is(err, pgx.ErrNoRows) {
		return ImportReport{}, ErrClaimLost
	}
	return report, err
}

// cleanCatalogue returns copies with text that can be stored, every remote name once. Their JSON is cleaned by [cleanTool],
// where it has to be.
func cleanCatalogue(tools []ImportedTool, skipped []SkippedTool) ([]ImportedTool, []SkippedTool) {
	unique := make([]ImportedTool, 0, len(tools))
	out := make([]SkippedTool, 0, len(skipped))
	for _, tool := range skipped {
		out = append(out, SkippedTool{Name: cleanText(tool.Name), Reason: cleanText(tool.Reason)})
	}
	seen := make(map[string]bool, len(tools))
	for _, tool := range tools {
		tool.RemoteName, tool.Title, tool.Description = cleanText(tool.RemoteName), cleanText(tool.Title), cleanText(tool.Description)
		tool.NotOffered, tool.NotCallable = cleanText(tool.NotOffered), cleanText(tool.NotCallable)
		if seen[tool.RemoteName] {
			out = append(out, SkippedTool{Name: tool.RemoteName, Reason: "the server lists a tool of this name more than once; the first one counts"})
			continue
		}
		seen[tool.RemoteName] = true
		unique = append(unique, tool)
	}
	return unique, out
}

// cleanTool returns the tool with JSON that can be stored.
func cleanTool(tool ImportedTool) ImportedTool {
	// Model APIs refuse what is no text, such as half of an emoji.
	tool.ModelSchema = cleanJSON(tool.ModelSchema)
	if !bytes.Equal(tool.InputSchema, tool.ModelSchema) { // mostly they are equal, and then both are clean
		tool.InputSchema = keepJSON(tool.InputSchema)
	}
	tool.Annotations = keepJSON(tool.Annotations)
	return tool
}

func settleImport(ctx context.Context, tx pgx.Tx, server string, claim int64, tools []ImportedTool, skipped []SkippedTool,
	spent ImportSpent) (ImportReport, error) {
	if err := releaseImport(ctx, tx, server, claim); err != nil {
		return ImportReport{}, err
	}
	known, err := toolsByRemoteName(ctx, tx, server)
	if err != nil {
		return ImportReport{}, err
	}
	tools, homeless, err := nameTools(ctx, tx, tools, known)
	if err != nil {
		return ImportReport{}, err
	}
	skipped = append(skipped[:len(skipped):len(skipped)], homeless...)
	report := ImportReport{Skipped: len(skipped)}
	var added, changed []ImportedTool
	for _, tool := range tools {
		before, ok := known[tool.RemoteName]
		if ok && !tool.equals(before) { // what equals a row is as clean as that
			tool = cleanTool(tool)
		}
		switch {
		case !ok:
			report.Imported++
			added = append(added, tool)
		case before.OrphanedAt != nil:
			report.Revived++
			changed = append(changed, tool)
		case !tool.equals(before):
			report.Changed++
			changed = append(changed, tool)
		default:
			report.Unchanged++
		}
	}
	if err := addTools(ctx, tx, server, added); err != nil {
		return ImportReport{}, err
	}
	if err := changeTools(ctx, tx, server, changed); err != nil {
		return ImportReport{}, err
	}
	if report.Orphaned, err = orphanTools(ctx, tx, server, known, tools); err != nil {
		return ImportReport{}, err
	}
	if err := writeSkipped(ctx, tx, server, skipped, spent); err != nil {
		return ImportReport{}, err
	}
	return report, writeImported(ctx, tx, server, len(tools), len(skipped))
}

// releaseImport is the fence: it finds the lease that the claim holds and gives it up, and by that locks the server's row,
// so that nobody else writes this catalogue until the transaction ends.
func releaseImport(ctx context.Context, tx pgx.Tx, server string, claim int64) error {
	tag, err := tx.Exec(ctx, `
		update mcp_server
		set import_claimed_by = null, import_lease_expires_at = null
		where identifier = $1 and import_claim = $2 and $2 > 0 and import_lease_expires_at is not null`, server, claim)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrClaimLost
	}
	return err
}

func toolsByRemoteName(ctx context.Context, tx pgx.Tx, server string) (map[string]Tool, error) {
	rows, err := tx.Query(ctx, `select `+toolColumns+` from mcp_tool t where t.server = $1`, server)
	if err != nil {
		return nil, err
	}
	tools, err := pgx.CollectRows(rows, scanTool)
	byRemoteName := make(map[string]Tool, len(tools))
	for _, t := range tools {
		byRemoteName[t.RemoteName] = t
	}
	return byRemoteName, err
}

// nameTools gives each tool the name its row has, or a new one its plain name, or its hashed name where another tool of
// whichever server has the plain one. Tools with neither name free are returned apart.
func nameTools(ctx context.Context, tx pgx.Tx, tools []ImportedTool, known map[string]Tool) ([]ImportedTool, []SkippedTool, error) {
	var wanted []string
	for _, tool := range tools {
		if _, ok := known[tool.RemoteName]; !ok {
			wanted = append(wanted, tool.Name, tool.HashedName)
		}
	}
	rows, err := tx.Query(ctx, `select name from mcp_tool where name = any ($1)`, wanted)
	if err != nil {
		return nil, nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, nil, err
	}
	taken := make(map[string]bool, len(names)+len(tools))
	for _, name := range names {
		taken[name] = true
	}
	named := make([]ImportedTool, 0, len(tools))
	var homeless []SkippedTool
	for _, tool := range tools {
		if before, ok := known[tool.RemoteName]; ok {
			tool.Name = before.Name
		} else if taken[tool.Name] {
			tool.Name = tool.HashedName
			if tool.Name == "" || taken[tool.Name] {
				homeless = append(homeless, SkippedTool{Name: tool.RemoteName, Reason: "other tools have both of the names that it could take here"})
				continue
			}
		}
		taken[tool.Name] = true
		named = append(named, tool)
	}
	return named, homeless, nil
}

// equals tells whether the row says of the tool what the server does. JSON is compared as text: its order is kept.
func (t ImportedTool) equals(row Tool) bool {
	return t.Title == row.Title && t.Description == row.Description && bytes.Equal(t.InputSchema, row.InputSchema) &&
		bytes.Equal(t.Annotations, row.Annotations) && bytes.Equal(t.ModelSchema, row.ModelSchema) &&
		t.NotOffered == row.NotOffered && t.NotCallable == row.NotCallable
}

// addTools inserts tools that have no row. Nobody else writes this server's rows meanwhile (see [releaseImport]).
func addTools(ctx context.Context, tx pgx.Tx, server string, tools []ImportedTool) error {
	if len(tools) == 0 {
		return nil
	}
	slices.SortFunc(tools, byName)
	columns := []string{"server", "name", "remote_name", "title", "description", "input_schema", "annotations", "model_schema", "not_offered", "not_callable"}
	// While Postgres writes some, the next are cleaned.
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"mcp_tool"}, columns, pgx.CopyFromSlice(len(tools), func(i int) ([]any, error) {
		t := cleanTool(tools[i])
		return []any{
			server, t.Name, t.RemoteName, zeronull.Text(t.Title), zeronull.Text(t.Description), t.InputSchema, t.Annotations, t.ModelSchema,
			zeronull.Text(t.NotOffered), zeronull.Text(t.NotCallable),
		}, nil
	}))
	return err
}

// byName is the order in which tools are written, so that two imports wait for each other in one order.
func byName(a, b ImportedTool) int { return strings.Compare(a.Name, b.Name) }

// toolsAtOnce is how many tools one statement changes: so many that its round trip does not count, so few that their schemas
// are no message of megabytes.
const toolsAtOnce = 128

// changeTools writes what is new about tools that have a row, and that are clean.
func changeTools(ctx context.Context, tx pgx.Tx, server string, tools []ImportedTool) error {
	slices.SortFunc(tools, byName)
	for some := range slices.Chunk(tools, toolsAtOnce) {
		names := make([]string, len(some))
		titles := make([]string, len(some)) // of all of these, empty is null
		descriptions := make([]string, len(some))
		schemas := make([]json.RawMessage, len(some))
		annotations := make([]json.RawMessage, len(some))
		modelSchemas := make([]json.RawMessage, len(some))
		notOffered := make([]string, len(some))
		notCallable := make([]string, len(some))
		for i, t := range some {
			names[i], titles[i], descriptions[i] = t.Name, t.Title, t.Description
			schemas[i], annotations[i], modelSchemas[i] = t.InputSchema, t.Annotations, t.ModelSchema
			notOffered[i], notCallable[i] = t.NotOffered, t.NotCallable
		}
		_, err := tx.Exec(ctx, `
			update mcp_tool t
			set title = nullif(i.title, ''), description = nullif(i.description, ''), input_schema = i.input_schema,
				annotations = i.annotations, model_schema = i.model_schema, not_offered = nullif(i.not_offered, ''),
				not_callable = nullif(i.not_callable, ''), orphaned_at = null, updated_at = clock_timestamp()
			from unnest($2::text[], $3::text[], $4::text[], $5::json[], $6::json[], $7::json[], $8::text[], $9::text[])
				as i (name, title, description, input_schema, annotations, model_schema, not_offered, not_callable)
			where t.server = $1 and t.name = i.name`,
			server, names, titles, descriptions, schemas, annotations, modelSchemas, notOffered, notCallable)
		if err != nil {
			return err
		}
	}
	return nil
}

// orphanTools marks the tools that are known and no longer there.
func orphanTools(ctx context.Context, tx pgx.Tx, server string, known map[string]Tool, live []ImportedTool) (int, error) {
	still := make(map[string]bool, len(live))
	for _, tool := range live {
		still[tool.RemoteName] = true
	}
	var vanished []string
	for name, tool := range known {
		if !still[name] && tool.OrphanedAt == nil {
			vanished = append(vanished, name)
		}
	}
	if len(vanished) == 0 {
		return 0, nil
	}
	tag, err := tx.Exec(ctx, `
		update mcp_tool
		set orphaned_at = clock_timestamp(), updated_at = clock_timestamp()
		where server = $1 and orphaned_at is null and remote_name = any ($2)`, server, vanished)
	return int(tag.RowsAffected()), err
}

func writeSkipped(ctx context.Context, tx pgx.Tx, server string, skipped []SkippedTool, spent ImportSpent) error {
	if len(skipped) == 0 {
		return nil
	}
	tools := make([]zeronull.Text, len(skipped))
	reasons := make([]string, len(skipped))
	for i, tool := range skipped {
		tools[i], reasons[i] = zeronull.Text(tool.Name), tool.Reason
	}
	_, err := tx.Exec(ctx, `
		insert into import_error (server, kind, tool, message, asked, budget_ms, legs, task_id)
		select $1, $2, i.tool, i.reason, 'yes', $5, coalesce($6::json, '[]'), $7
		from unnest($3::text[], $4::text[]) with ordinality as i (tool, reason, position)
		order by i.position`,
		server, kindToolSkipped, tools, reasons, zeronull.Int8(spent.BudgetMS), cleanLegs(spent.Legs), text(spent.TaskID))
	return err
}

func writeImported(ctx context.Context, tx pgx.Tx, server string, live, skipped int) error {
	status := "ok"
	if skipped > 0 {
		status = "partial"
	}
	_, err := tx.Exec(ctx, `
		update mcp_server
		set import_status = $2, tool_count = $3, last_imported_at = clock_timestamp()
		where identifier = $1`, server, status, live)
	return err
}

// FailImport tells why an import did not happen, in one import_error row, and gives the claim up. The catalogue stays as it
// was. Claim 0 is an import that was never claimed, of an unknown or an inert server: only the row is written, once for a
// task that comes again with the same failure. The error is
// [ErrClaimLost] when another import has begun since; then nothing is written. A claim settles once: failing again with it,
// after a reply that was lost, changes nothing.
func (s *Store) FailImport(ctx context.Context, server string, claim int64, failure Failure, spent ImportSpent) error {
	tag, err := s.pool.Exec(ctx, `
		with released as (
			update mcp_server
			set import_status = 'error', import_claimed_by = null, import_lease_expires_at = null
			where identifier = $1 and import_claim = $2 and $2 > 0 and import_lease_expires_at is not null
			returning identifier
		)
		insert into import_error (server, kind, message, asked, budget_ms, legs, task_id)
		select $1, $3, $4, $5, $6, coalesce($7::json, '[]'), $8
		where exists (select from released) or $2 = 0 and not exists (
			select from import_error e
			where e.task_id = $8 and e.kind = $3 and e.server is not distinct from $1)`,
		text(server), claim, failure.Kind, cleanText(failure.Message), text(failure.Asked), zeronull.Int8(spent.BudgetMS),
		cleanLegs(spent.Legs), text(spent.TaskID))
	if err == nil && tag.RowsAffected() == 0 && claim != 0 {
		_, err = s.importSettledBefore(ctx, server, claim, 0)
	}
	if err != nil {
		return fmt.Errorf("fail the import of server %q: %w", server, err)
	}
	return nil
}

// ImportError is a row of import_error. Columns that are null read as the zero value.
type ImportError struct {
	ID         int64           `json:"id"`
	Server     string          `json:"server,omitempty"`
	Kind       string          `json:"kind"` // a failure kind, or tool_skipped
	Tool       string          `json:"tool,omitempty"`
	Message    string          `json:"message"`
	Asked      string          `json:"asked,omitempty"`
	BudgetMS   *int64          `json:"budget_ms"`
	Legs       json.RawMessage `json:"legs"`
	TaskID     string          `json:"task_id,omitempty"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// ImportErrorFilter chooses import errors. Its zero value chooses the newest [DefaultLimit].
type ImportErrorFilter struct {
	Server string
	Limit  int
}

// ImportErrors returns the errors that fit every part of the filter that is set, newest first.
func (s *Store) ImportErrors(ctx context.Context, filter ImportErrorFilter) ([]ImportError, error) {
	rows, err := s.pool.Query(ctx, `
		select id, server, kind, tool, message, asked, budget_ms, legs, task_id, occurred_at
		from import_error
		where $1::text is null or server = $1
		order by occurred_at desc, id desc
		limit $2`, text(filter.Server), limit(filter.Limit))
	if err != nil {
		return nil, fmt.Errorf("list import errors: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ImportError, error) {
		var e ImportError
		err := row.Scan(&e.ID, (*zeronull.Text)(&e.Server), &e.Kind, (*zeronull.Text)(&e.Tool), &e.Message,
			(*zeronull.Text)(&e.Asked), &e.BudgetMS, (*[]byte)(&e.Legs), (*zeronull.Text)(&e.TaskID), &e.OccurredAt)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("list import errors: %w", err)
	}
	return all, nil
}
