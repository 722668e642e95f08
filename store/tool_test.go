package store_test

import (
	"strings"
	"testing"

	"legwork/store"
)

func TestTools(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addServer("crm")
	b.importTools("docs", tool("docs", "search"), tool("docs", "fetch"))
	b.importTools("crm", tool("crm", "search"))
	for server, want := range map[string]string{
		"":       "mcp_crm_search mcp_docs_fetch mcp_docs_search",
		"docs":   "mcp_docs_fetch mcp_docs_search",
		"nobody": "",
	} {
		tools, err := b.Tools(t.Context(), server)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range tools {
			names = append(names, tool.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("tools of %q: %s, want %s", server, got, want)
		}
	}
}

func TestToolSettings(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.importTools("docs", tool("docs", "search"))
	if err := b.SetToolEnabled(t.Context(), "mcp_docs_search", true); err != nil {
		t.Fatal(err)
	}
	if err := b.SetToolEffect(t.Context(), "mcp_docs_search", "idempotent_write"); err != nil {
		t.Fatal(err)
	}
	if got := b.tool("mcp_docs_search"); !got.Enabled || got.Effect != "idempotent_write" || !got.UpdatedAt.After(got.ImportedAt) {
		t.Errorf("tool %+v, want it enabled and an idempotent write", got)
	}
	if err := b.SetToolEnabled(t.Context(), "mcp_docs_search", false); err != nil {
		t.Fatal(err)
	}
	if got := b.tool("mcp_docs_search"); got.Enabled {
		t.Error("the tool is still enabled")
	}
	err := b.SetToolEffect(t.Context(), "mcp_docs_search", "harmless")
	if err == nil || !strings.Contains(err.Error(), `"harmless" is none of read_only, idempotent_write, non_idempotent_write`) {
		t.Errorf("error %v, want one that names the effects", err)
	}
	wantError(t, b.SetToolEnabled(t.Context(), "nothing", true), store.ErrNotFound)
	wantError(t, b.SetToolEffect(t.Context(), "nothing", "read_only"), store.ErrNotFound)
	_, err = b.Tool(t.Context(), "nothing")
	wantError(t, err, store.ErrNotFound)
}
