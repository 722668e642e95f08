package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"legwork/store"
	"legwork/worker"
)

const (
	timeImport  = "time"
	rowsWritten = "rows written"
)

const importServer = "stub"

// importing compares writing down a catalogue that is new with the quickest way to put the same rows into the same table, and
// counts what one writes that has not changed.
func importing(ctx context.Context, b *bench) error {
	postgres, _, stop, err := b.startServers(ctx, false)
	if err != nil {
		return err
	}
	defer stop()
	if _, err := store.MigrateUp(ctx, postgres.URL); err != nil {
		return err
	}
	rows, err := store.Open(ctx, postgres.URL, worker.StoreOptions())
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := rows.AddServer(ctx, store.Server{Identifier: importServer, URL: "http://127.0.0.1/", DataClass: "internal", Enabled: true}); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, postgres.URL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `create temporary table incoming (like mcp_tool including defaults)`); err != nil {
		return err
	}

	tools := someTools(b.pick(500, 20))
	again := func(ctx context.Context) (sample, error) {
		claim, err := rows.ClaimImport(ctx, store.ImportRequest{Server: importServer, Budget: time.Minute, Margin: time.Minute})
		if err != nil {
			return nil, err
		}
		started := time.Now()
		report, err := rows.SettleImport(ctx, importServer, claim.Claim, tools, nil, store.ImportSpent{})
		took := time.Since(started)
		if n := report.Imported + report.Unchanged; err == nil && n != len(tools) {
			err = fmt.Errorf("%d tools were imported, not %d", n, len(tools))
		}
		return sample{timeImport: float64(took)}, err
	}
	empty := func(ctx context.Context) error {
		_, err := conn.Exec(ctx, `truncate mcp_tool, incoming`)
		return err
	}
	contenders := []contender{
		{"new", func(ctx context.Context) (sample, error) {
			if err := empty(ctx); err != nil {
				return nil, err
			}
			return again(ctx)
		}},
		{"unchanged", func(ctx context.Context) (sample, error) {
			before, err := versions(ctx, conn)
			if err != nil {
				return nil, err
			}
			s, err := again(ctx)
			if err != nil {
				return nil, err
			}
			after, err := versions(ctx, conn)
			for version := range after {
				if !before[version] {
					s[rowsWritten]++
				}
			}
			s[rowsWritten] += float64(max(0, len(before)-len(after)))
			return s, err
		}},
		{"COPY and MERGE", func(ctx context.Context) (sample, error) {
			if err := empty(ctx); err != nil {
				return nil, err
			}
			return copyAndMerge(ctx, conn, tools)
		}},
	}
	return b.compare(ctx, fmt.Sprintf("%d tools with schemas of 2 kB", len(tools)), []string{timeImport, rowsWritten}, contenders, []bound{
		{measure: timeImport, of: "new", over: "COPY and MERGE", atMost: 1.5},
		{measure: timeImport, of: "unchanged", over: "COPY and MERGE"},
		{measure: rowsWritten, of: "unchanged", atMost: 0.5},
	})
}

// versions is each row of mcp_tool as it physically is: one that was written, or only locked, is another one afterwards.
func versions(ctx context.Context, conn *pgx.Conn) (map[string]bool, error) {
	rows, err := conn.Query(ctx, `select concat_ws(' ', name, ctid, xmin, xmax) from mcp_tool`)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	found := make(map[string]bool, len(all))
	for _, version := range all {
		found[version] = true
	}
	return found, err
}

func someTools(n int) []store.ImportedTool {
	tools := make([]store.ImportedTool, n)
	for i := range tools {
		name := fmt.Sprintf("tool_%03d", i)
		schema := fmt.Sprintf(`{"type":"object","properties":{"query":{"type":"string","description":%q},"limit":{"type":"integer","default":%d}},"required":["query"]}`,
			strings.Repeat("What to look for, in words. ", 66), i)
		tools[i] = store.ImportedTool{
			Name: "mcp_" + importServer + "_" + name, HashedName: "mcp_" + importServer + "_" + name + "_hash", RemoteName: name, Title: "Tool",
			Description: "Looks for something and says what it found.", InputSchema: json.RawMessage(schema), ModelSchema: json.RawMessage(schema),
		}
	}
	return tools
}

func copyAndMerge(ctx context.Context, conn *pgx.Conn, tools []store.ImportedTool) (sample, error) {
	started := time.Now()
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		columns := []string{"server", "name", "remote_name", "title", "description", "input_schema", "model_schema"}
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"incoming"}, columns, pgx.CopyFromSlice(len(tools), func(i int) ([]any, error) {
			t := tools[i]
			return []any{importServer, t.Name, t.RemoteName, t.Title, t.Description, t.InputSchema, t.ModelSchema}, nil
		}))
		if err != nil {
			return err
		}
		// MERGE needs Postgres 15.
		_, err = tx.Exec(ctx, `
			merge into mcp_tool t
			using incoming i on t.server = i.server and t.remote_name = i.remote_name
			when matched and (t.title, t.description, t.input_schema::text, t.model_schema::text)
				is distinct from (i.title, i.description, i.input_schema::text, i.model_schema::text) then
				update set title = i.title, description = i.description, input_schema = i.input_schema, model_schema = i.model_schema
			when not matched then
				insert (server, name, remote_name, title, description, input_schema, model_schema)
				values (i.server, i.name, i.remote_name, i.title, i.description, i.input_schema, i.model_schema)`)
		return err
	})
	return sample{timeImport: float64(time.Since(started))}, err
}
