package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"legwork/mcp"
)

// callsFor chooses what to call where the suite does not say. Every tool that the client took is called once: what it must
// not call it must not have taken.
func callsFor(scenario string, tools map[string]mcp.Tool) ([]suiteCall, error) {
	if scenario == "json-schema-ref-no-deref" {
		return nil, nil // its tool is there to be read: the server knows no tools/call
	}
	var calls []suiteCall
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		arguments, err := sample(tools[name].InputSchema)
		if err != nil {
			return nil, fmt.Errorf("make arguments for tool %q: %w", name, err)
		}
		if scenario == "json-schema-2020-12-preservation" && name == "json_schema_echo" {
			// What is left of the other tool's schema comes back in the arguments of this one.
			arguments = json.RawMessage(`{"schema":` + string(tools["json_schema_2020_12_tool"].InputSchema) + `}`)
		}
		calls = append(calls, suiteCall{Name: name, Arguments: arguments})
	}
	return calls, nil
}

// sample makes arguments that a schema asks for: a value of the right type for each required property.
func sample(schema json.RawMessage) (json.RawMessage, error) {
	var object struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if err := json.Unmarshal(schema, &object); err != nil {
		return nil, err
	}
	arguments := map[string]any{}
	for _, name := range object.Required {
		switch object.Properties[name].Type {
		case "integer", "number":
			arguments[name] = 2
		case "boolean":
			arguments[name] = true
		case "array":
			arguments[name] = []any{}
		case "object":
			arguments[name] = map[string]any{}
		case "null":
			arguments[name] = nil
		default:
			arguments[name] = "sample"
		}
	}
	return json.Marshal(arguments)
}
