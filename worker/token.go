package worker

import (
	"sync"

	"legwork/mcp"
)

// tokens keeps the access token that each server's last operation had, so that the next one need not ask for another. They
// stand nowhere else: a worker that starts has none.
type tokens struct {
	mu       sync.Mutex
	byServer map[string]mcp.Token
}

// lend gives the server the token that it may have.
func (t *tokens) lend(server mcp.Server) mcp.Server {
	if server.Credential.OAuth.TokenURL == "" {
		return server
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	server.Token = t.byServer[server.Identifier]
	return server
}

// keep takes what came back from an operation. A token that was not accepted goes, unless another operation has brought a
// new one meanwhile.
func (t *tokens) keep(server mcp.Server, spent mcp.Spent) {
	if server.Credential.OAuth.TokenURL == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case spent.Token != mcp.Token{}:
		if t.byServer == nil {
			t.byServer = map[string]mcp.Token{}
		}
		t.byServer[server.Identifier] = spent.Token
	case t.byServer[server.Identifier] == server.Token:
		delete(t.byServer, server.Identifier)
	}
}
