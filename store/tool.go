package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Tool is a row of mcp_tool.
type Tool struct {
	Name        string          `json:"name"` // in this installation
	Server      string          `json:"server"`
	RemoteName  string          `json:"remote_name"` // as sent on the wire
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"` // for display only
	// ModelSchema is the input schema as a model is given it. It is empty where NotOffered is not, and until an import has
	// looked.
	ModelSchema json.RawMessage `json:"model_schema,omitempty"`
	NotOffered  string          `json:"not_offered,omitempty"`  // why no model is offered the tool; a step may call it
	NotCallable string          `json:"not_callable,omitempty"` // why nobody can call the tool; it is not offered either
	Enabled     bool            `json:"enabled"`
	Effect      string          `json:"effect"`      // non_idempotent_write, idempotent_write, read_only
	OrphanedAt  *time.Time      `json:"orphaned_at"` // nil while the server advertises the tool
	ImportedAt  time.Time       `json:"imported_at"` // first
	UpdatedAt   time.Time       `json:"updated_at"`
}

const toolColumns = `t.name, t.server, t.remote_name, t.title, t.description, t.input_schema, t.annotations,
	t.model_schema, t.not_offered, t.not_callable, t.enabled, t.effect, t.orphaned_at, t.imported_at, t.updated_at`

func scanTool(row pgx.CollectableRow) (Tool, error) {
	var t Tool
	err := row.Scan(&t.Name, &t.Server, &t.RemoteName, (*zeronull.Text)(&t.Title), (*zeronull.Text)(&t.Description),
		(*[]byte)(&t.InputSchema), (*[]byte)(&t.Annotations), (*[]byte)(&t.ModelSchema), (*zeronull.Text)(&t.NotOffered),
		(*zeronull.Text)(&t.NotCallable), &t.Enabled, &t.Effect, &t.OrphanedAt, &t.ImportedAt, &t.UpdatedAt)
	return t, err
}

// Tools returns the tools of one server, or of all when server is empty, by server and name; orphans are among them.
func (s *Store) Tools(ctx context.Context, server string) ([]Tool, error) {
	rows, err := s.pool.Query(ctx, `
		select `+toolColumns+`
		from mcp_tool t
		where $1 = '' or t.server = $1
		order by t.server, t.name`, cleanText(server))
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	tools, err := pgx.CollectRows(rows, scanTool)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	return tools, nil
}

// Tool returns one tool by its name in this installation; [ErrNotFound].
func (s *Store) Tool(ctx context.Context, name string) (Tool, error) {
	rows, err := s.pool.Query(ctx, `select `+toolColumns+` from mcp_tool t where t.name = $1`, cleanText(name))
	tool, err := one(rows, err, scanTool)
	if err != nil {
		return Tool{}, fmt.Errorf("read tool %q: %w", name, err)
	}
	return tool, nil
}

// SetToolEnabled says whether a model may choose the tool; [ErrNotFound].
func (s *Store) SetToolEnabled(ctx context.Context, name string, enabled bool) error {
	tag, err := s.pool.Exec(ctx, `
		update mcp_tool set enabled = $2, updated_at = clock_timestamp() where name = $1`, cleanText(name), enabled)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("enable or disable tool %q: %w", name, err)
	}
	return nil
}

// SetToolEffect declares what calling the tool does, which decides whether an interrupted call may be repeated. The error
// is [ErrNotFound], or names the effects there are.
func (s *Store) SetToolEffect(ctx context.Context, name, effect string) error {
	if !slices.Contains([]string{"read_only", "idempotent_write", "non_idempotent_write"}, effect) {
		return fmt.Errorf("set the effect of tool %q: %q is none of read_only, idempotent_write, non_idempotent_write", name, effect)
	}
	tag, err := s.pool.Exec(ctx, `
		update mcp_tool set effect = $2, updated_at = clock_timestamp() where name = $1`, cleanText(name), effect)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("set the effect of tool %q: %w", name, err)
	}
	return nil
}
