package main

import (
	"context"
	"embed"
	"path/filepath"
	"time"

	"legwork/internal/npm"
	"legwork/mcp"
)

// subject is one server, and what is to be expected of it.
type subject struct {
	name  string
	start func(context.Context) (address string, stop func(), err error)

	revision string // that is agreed on
	unnamed  bool   // tools/list is answered without a handshake, and so without a revision
	pages    int    // of the catalogue; zero means one

	works   call
	says    string // what the result of works holds
	resumed int    // how often the stream of works ends early
	fails   call
	refuses mcp.Kind // how fails ends
	slow    call
	budget  time.Duration // for slow, where the usual is too much
}

type call struct{ tool, arguments string }

// What is taken from npm. The older SDK is the last but few that answers without a handshake; it is there under another name.
const (
	everything    = "@modelcontextprotocol/server-everything"
	typescript    = "@modelcontextprotocol/sdk"
	oldTypescript = "sdk-old"
)

//go:embed packages
var files embed.FS

// npmSubjects are the servers that run on Node, as their packages hold them.
func npmSubjects(node *npm.Node, packages npm.Packages, modules string) []subject {
	serve := func(script string, args ...string) func(context.Context) (string, func(), error) {
		return func(ctx context.Context) (string, func(), error) {
			server, err := node.Serve(ctx, filepath.Join(modules, filepath.FromSlash(script)), args...)
			if err != nil {
				return "", nil, err
			}
			return server.Address, server.Stop, nil
		}
	}
	const (
		examples    = typescript + "/dist/esm/examples/server/"
		oldExamples = oldTypescript + "/dist/esm/examples/server/"
	)
	everythingVersion, sdkVersion, oldSDKVersion := packages.Version(everything), packages.Version(typescript), packages.Version(oldTypescript)
	greet := call{"greet", `{"name":"Ada"}`}
	unnamed := call{"greet", `{}`} // its name is missing
	notify := call{"start-notification-stream", `{"interval":10,"count":3}`}
	unnotified := call{"start-notification-stream", `{"interval":"soon"}`}
	slowly := call{"start-notification-stream", `{"interval":1000,"count":60}`}
	slowGreet := call{"multi-greet", `{"name":"Ada"}`} // takes two seconds

	return []subject{
		{
			name: "server-everything " + everythingVersion, start: serve(everything+"/dist/index.js", "streamableHttp"),
			revision: "2025-11-25", says: "is 5", refuses: mcp.KindToolError,
			works: call{"get-sum", `{"a":2,"b":3}`}, fails: call{"get-sum", `{"a":"two"}`},
			slow: call{"trigger-long-running-operation", `{"duration":60,"steps":60}`},
		},
		{
			name: "TypeScript SDK " + sdkVersion + ", stateful", start: serve(examples + "simpleStreamableHttp.js"),
			revision: "2025-11-25", works: greet, says: "Hello, Ada!", fails: unnamed, refuses: mcp.KindToolError, slow: slowly,
		},
		{
			name: "TypeScript SDK " + sdkVersion + ", stateful, JSON", start: serve(examples + "jsonResponseStreamableHttp.js"),
			revision: "2025-11-25", works: greet, says: "Hello, Ada!", fails: unnamed, refuses: mcp.KindToolError,
			slow: slowGreet, budget: time.Second,
		},
		{
			name: "TypeScript SDK " + sdkVersion + ", stateless", start: serve(examples + "simpleStatelessStreamableHttp.js"),
			revision: "2025-11-25", works: notify, says: "every 10ms", fails: unnotified, refuses: mcp.KindToolError, slow: slowly,
		},
		{
			name: "TypeScript SDK " + sdkVersion + ", stream ends early", start: serve(examples + "ssePollingExample.js"),
			revision: "2025-11-25", works: call{"long-task", `{}`}, says: "completed", resumed: 1,
			fails: call{"no-such-tool", `{}`}, refuses: mcp.KindToolError, slow: call{"long-task", `{}`}, budget: time.Second,
		},
		{
			name: "TypeScript SDK " + oldSDKVersion + ", stateful", start: serve(oldExamples + "simpleStreamableHttp.js"),
			revision: "2025-03-26", works: greet, says: "Hello, Ada!", fails: unnamed, refuses: mcp.KindRPCError, slow: slowly,
		},
		{
			name: "TypeScript SDK " + oldSDKVersion + ", stateless", start: serve(oldExamples + "simpleStatelessStreamableHttp.js"),
			revision: "2025-03-26", unnamed: true, works: notify, says: "every 10ms", fails: unnotified, refuses: mcp.KindRPCError, slow: slowly,
		},
	}
}
