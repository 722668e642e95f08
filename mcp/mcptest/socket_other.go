//go:build !linux

package mcptest

import (
	"net"
	"testing"
)

// Nowhere is a URL where nothing listens: a connection to it is refused.
func Nowhere(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String() + "/mcp"
}

// Unconnectable is a URL at which no connection ever comes about, and none is refused. Linux only; elsewhere the test is
// skipped.
func Unconnectable(t testing.TB) string {
	t.Helper()
	t.Skip("a listener whose queue is full is only known how to make on Linux")
	return ""
}
