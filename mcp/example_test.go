package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"legwork/mcp"
)

// A worker makes one client and carries out all its operations through it.
func ExampleClient_CallTool() {
	gate, err := mcp.NewGate(mcp.GateOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	clock := mcp.MonotonicClock()
	client := mcp.NewClient(mcp.NewTransport(mcp.NewHTTPTransport(gate), clock), clock, "v1")
	defer client.Close()

	server := mcp.Server{Identifier: "docs", URL: "http://127.0.0.1:8080/mcp"}
	call := mcp.ToolCall{Name: "search", Arguments: json.RawMessage(`{"query":"budget"}`)}
	budget := mcp.Budget{Total: 20 * time.Second, Owner: mcp.OwnerInstallation}
	result, spent, err := client.CallTool(context.Background(), server, call, budget)

	var failure *mcp.Failure
	if errors.As(err, &failure) {
		fmt.Println(failure.Kind, "asked:", failure.Asked)
		fmt.Println(failure.Message)
		for _, leg := range spent.Legs {
			fmt.Println(leg.Method, "was granted", leg.Granted, "and ended in", leg.Outcome)
		}
		return
	}
	fmt.Println(result.Text)
	// Output:
	// refused_host asked: no
	// Refused host: "127.0.0.1" of server "docs" is an address that is not on the public internet, so nothing was sent. If it is meant, add 127.0.0.1 to LEGWORK_ALLOWED_HOSTS, or set LEGWORK_ALLOW_PRIVATE_NETWORKS=true for all private networks.
	// server/discover was granted 20s and ended in refused_host
}
