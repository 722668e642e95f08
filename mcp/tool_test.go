package mcp_test

import (
	"strings"
	"testing"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestLocalToolName(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("x", 64-len("mcp_docs_"))
	for _, tt := range []struct {
		story      string
		identifier string
		remote     string
		hashed     bool
		want       string
	}{
		{"fits", "docs", "search-all_2", false, "mcp_docs_search-all_2"},
		{"just fits", "docs", fits, false, "mcp_docs_" + fits},
		{"fits but is taken", "docs", "search", true, "mcp_docs_search_12790ead"},
		{"one too long", "docs", fits + "x", false, "mcp_docs_" + fits[:len(fits)-9] + "_394363e1"},
		{"odd characters", "docs", "odd name/ä", false, "mcp_docs_odd_name___f4c60a88"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			if got := mcp.LocalToolName(tt.identifier, tt.remote, tt.hashed); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
		})
	}
	// What looks alike when it was made to fit is told apart.
	seen := map[string]string{}
	for _, remote := range []string{"a b", "a/b", "a.b", "a_b", "a\u00e4b", "a\xffb", fits + "1", fits + "2"} {
		name := mcp.LocalToolName("docs", remote, false)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both called %q", remote, other, name)
		}
		seen[name] = remote
	}
	// Two servers can come to the same name; the hash tells them apart.
	if mcp.LocalToolName("a", "b_c", false) != mcp.LocalToolName("a_b", "c", false) {
		t.Error("the case that asks for a hash is gone")
	}
	if mcp.LocalToolName("a", "b_c", true) == mcp.LocalToolName("a_b", "c", true) {
		t.Error("the hash tells two servers' tools not apart")
	}
}

func TestToolsWithOddNamesAreCalledByThem(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{}})
	client := newClient(t, parts{})
	for _, name := range []string{"odd name/ä", "日本語", `a"b\c`, "<a>&", strings.Repeat("n", 256), "\u202e"} {
		fake.SetTools(mcptest.Tool{Name: name})
		catalogue, _, err := client.ListTools(t.Context(), docs(fake.URL), ample)
		if err != nil || len(catalogue.Tools) != 1 {
			t.Errorf("%q: %+v, %v", name, catalogue, err)
			continue
		}
		result, _, err := client.CallTool(t.Context(), docs(fake.URL), mcp.ToolCall{Name: catalogue.Tools[0].Name, Arguments: []byte(`{}`)}, ample)
		if err != nil || result.Text != name+" was called" {
			t.Errorf("%q: %q, %v", name, result.Text, err)
		}
	}
}
