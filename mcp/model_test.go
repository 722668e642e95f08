package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestModelSchema(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ story, schema, want string }{
		// What APIs insist on.
		{"nothing at all", `{}`, `{"type":"object","properties":{}}`},
		{"no properties", `{"type":"object"}`, `{"type":"object","properties":{}}`},
		{"no type", `{"properties":{"q":{"type":"string"}}}`, `{"type":"object","properties":{"q":{"type":"string"}}}`},
		{"an array of anything", `{"type":"object","properties":{"a":{"type":"array"},"b":{"type":["array","null"],"items":{"type":"string"}},"c":{"type":["null","array"]}}}`,
			`{"type":"object","properties":{"a":{"type":"array","items":{}},"b":{"type":["array","null"],"items":{"type":"string"}},"c":{"type":["null","array"],"items":{}}}}`},
		{"a nested object needs neither", `{"type":"object","properties":{"a":{"properties":{}},"b":{"type":"object"}}}`,
			`{"type":"object","properties":{"a":{"properties":{}},"b":{"type":"object"}}}`},

		// References.
		{"a reference", `{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"string"}}}`,
			`{"type":"object","properties":{"a":{"type":"string"}}}`},
		{"all of it is a reference", `{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/Args","definitions":{"Args":{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}}}`,
			`{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}`},
		{"a reference to a reference", `{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"$ref":"#/$defs/B","title":"A"},"B":{"type":"string","title":"B"}}}`,
			`{"type":"object","properties":{"a":{"title":"A","type":"string"}}}`},
		{"one target twice, none within itself", `{"properties":{"a":{"$ref":"#/$defs/A"},"b":{"items":{"$ref":"#/$defs/A"}}},"$defs":{"A":{"properties":{"c":{"$ref":"#/$defs/B"},"d":{"$ref":"#/$defs/B"}}},"B":{}}}`,
			`{"type":"object","properties":{"a":{"properties":{"c":{},"d":{}}},"b":{"items":{"properties":{"c":{},"d":{}}}}}}`},
		{"a pointer with escapes", `{"properties":{"a":{"$ref":"#/$defs/x~1y~0z%20%25~01"}},"$defs":{"x/y~z %~1":{"type":"null"}}}`,
			`{"type":"object","properties":{"a":{"type":"null"}}}`},
		{"a pointer into a list", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"$ref":"#/properties/a/anyOf/1"}}}`,
			`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"type":"null"}}}`},
		{"a pointer into what no keyword holds", `{"properties":{"a":{"$ref":"#/components/schemas/A"}},"components":{"schemas":{"A":{"type":"null"}}}}`,
			`{"type":"object","properties":{"a":{"type":"null"}}}`},
		{"annotations beside a reference win", `{"properties":{"a":{"description":"mine","title":"mine","default":1,"examples":[1],"deprecated":true,"$ref":"#/$defs/A"}},"$defs":{"A":{"description":"its","title":"its","default":2,"examples":[2],"deprecated":false,"minimum":0}}}`,
			`{"type":"object","properties":{"a":{"description":"mine","title":"mine","default":1,"examples":[1],"deprecated":true,"minimum":0}}}`},
		{"constraints beside a reference stay", `{"properties":{"a":{"$ref":"#/$defs/A","maximum":9,"type":"integer"}},"$defs":{"A":{"type":"integer","minimum":0}}}`,
			`{"type":"object","properties":{"a":{"maximum":9,"type":"integer","minimum":0}}}`},
		{"a reference to anything", `{"properties":{"a":{"$ref":"#/$defs/A","title":"t"}},"$defs":{"A":true}}`, `{"type":"object","properties":{"a":{"title":"t"}}}`},
		{"an allOf of one", `{"properties":{"a":{"allOf":[{"$ref":"#/$defs/A"}],"description":"mine"}},"$defs":{"A":{"type":"string","description":"its"}}}`,
			`{"type":"object","properties":{"a":{"description":"mine","type":"string"}}}`},
		{"an allOf of one and a reference to the same", `{"properties":{"a":{"allOf":[{"$ref":"#/$defs/A"}],"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"string"}}}`,
			`{"type":"object","properties":{"a":{"type":"string"}}}`},
		{"an allOf of none", `{"properties":{"a":{"allOf":[]}}}`, `{"type":"object","properties":{"a":{}}}`},
		{"closed properties behind a reference", `{"properties":{"a":{"$ref":"#/$defs/A","title":"t"}},"$defs":{"A":{"properties":{"b":{}},"additionalProperties":false}}}`,
			`{"type":"object","properties":{"a":{"title":"t","properties":{"b":{}},"additionalProperties":false}}}`},

		// What says nothing.
		{"keywords that constrain nothing", `{"$schema":"s","$id":"i","$comment":"c","$anchor":"a","$dynamicAnchor":"d","$recursiveAnchor":true,"$vocabulary":{},"x-order":1,"x-mcp-header":"A","type":"object","properties":{"a":{"$id":"b","x-y":{"$ref":"#"}}}}`,
			`{"type":"object","properties":{"a":{}}}`},
		{"null", `{"type":"object","properties":{"a":{"type":"string","enum":null,"default":null,"title":null,"pattern":null,"not":null,"const":null}},"required":null,"anyOf":null,"$ref":null}`,
			`{"type":"object","properties":{"a":{"type":"string","default":null,"const":null}}}`},
		{"names of any kind", `{"propertyNames":{"type":"string"},"properties":{"a":{"propertyNames":true},"b":{"propertyNames":{}}}}`,
			`{"type":"object","properties":{"a":{},"b":{}}}`},
		{"an empty map as PHP writes it", `{"type":"object","properties":[]}`, `{"type":"object","properties":{}}`},
		{"annotations that are none", `{"type":"object","properties":{"a":{"title":5,"description":["x"],"examples":"x","deprecated":"yes"}}}`, `{"type":"object","properties":{"a":{}}}`},
		{"keywords that nobody knows", `{"type":"object","nullable":true,"enumNames":["a",["b"]],"discriminator":{"propertyName":"a"},"ui":[1,[{"$ref":"#"}]]}`,
			`{"type":"object","nullable":true,"enumNames":["a",["b"]],"properties":{}}`},
		{"white space", " {\t\"type\" :\r\n \"object\" , \"title\":\" a  b \" } ", `{"type":"object","title":" a  b ","properties":{}}`},

		// What stays as it is.
		{"the order", `{"title":"t","properties":{"z":{},"a":{"type":"string","description":"d"},"m":{}},"required":["z","a"],"type":"object"}`,
			`{"title":"t","properties":{"z":{},"a":{"type":"string","description":"d"},"m":{}},"required":["z","a"],"type":"object"}`},
		{"data", `{"type":"object","properties":{"a":{"default":{"$ref":"#","x-y":null,"not":9007199254740993},"enum":[1.0,1E2,"\u00e9\/<>&",{"$schema":"a"}],"const":{"b":1,"b":2},"examples":[{"allOf":[null]}]}}}`,
			`{"type":"object","properties":{"a":{"default":{"$ref":"#","x-y":null,"not":9007199254740993},"enum":[1.0,1E2,"\u00e9\/<>&",{"$schema":"a"}],"const":{"b":1,"b":2},"examples":[{"allOf":[null]}]}}}`},
		{"numbers", `{"properties":{"a":{"minimum":-9007199254740993,"maximum":1e400,"multipleOf":0.10}}}`, `{"type":"object","properties":{"a":{"minimum":-9007199254740993,"maximum":1e400,"multipleOf":0.10}}}`},
		{"properties named like keywords", `{"properties":{"not":{"type":"string"},"allOf":{},"if":{},"required":{},"properties":{"properties":{"items":{}}},"x-y":{},"anyOf":{},"definitions":{}},"required":["not"]}`,
			`{"type":"object","properties":{"not":{"type":"string"},"allOf":{},"if":{},"required":{},"properties":{"properties":{"items":{}}},"x-y":{},"anyOf":{},"definitions":{}},"required":["not"]}`},
		{"alternatives further down", `{"properties":{"a":{"oneOf":[{"type":"string"},{"type":"object","properties":{"b":{"anyOf":[{},true]}}}]}}}`,
			`{"type":"object","properties":{"a":{"oneOf":[{"type":"string"},{"type":"object","properties":{"b":{"anyOf":[{},{}]}}}]}}}`},
		{"a name given twice", `{"properties":{"a":{"type":"string"},"b":{},"a":{"type":"null"}},"title":"x","title":"y"}`,
			`{"type":"object","properties":{"a":{"type":"null"},"b":{}},"title":"y"}`},
		{"what is not UTF-8", "{\"title\":\"a\xff\xfeb\",\"properties\":{}}", "{\"type\":\"object\",\"title\":\"a\ufffdb\",\"properties\":{}}"},

		// True and false.
		{"true", `{"properties":{"a":true,"b":{"items":true},"c":{"additionalProperties":true}},"additionalProperties":true}`,
			`{"type":"object","properties":{"a":{},"b":{"items":{}},"c":{"additionalProperties":true}},"additionalProperties":true}`},
		{"a property that may not be given", `{"properties":{"z":false,"a":{},"b":{"$ref":"#/$defs/Never"},"c":{}},"$defs":{"Never":false}}`, `{"type":"object","properties":{"a":{},"c":{}}}`},
		{"maps", `{"additionalProperties":{"type":"object","additionalProperties":{"$ref":"#/$defs/Never"}},"$defs":{"Never":false}}`,
			`{"type":"object","additionalProperties":{"type":"object","additionalProperties":false},"properties":{}}`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			got, err := mcp.ModelSchema(json.RawMessage(tt.schema))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Error(diff)
			}
			again, err := mcp.ModelSchema(got)
			if err != nil || !bytes.Equal(got, again) {
				t.Errorf("made again of itself it is %s, %v", again, err)
			}
		})
	}
}

func TestSchemasThatNoModelTakes(t *testing.T) {
	t.Parallel()
	property := func(schema string) string { return `{"type":"object","properties":{"a":` + schema + `}}` }
	for _, tt := range []struct{ story, schema, why string }{
		{"no JSON", `{"type":`, `its input schema is not JSON`},
		{"nothing", ``, `its input schema is not JSON`},
		{"not an object", `["object"]`, `its input schema is not an object`},
		{"true", `true`, `its input schema is not an object`},

		{"another type", `{"type":"array"}`, `its type at the root is "array", and model APIs take "object" there`},
		{"a choice of types", `{"type":["object","null"]}`, `its type at the root is "['object','null']", and model APIs take "object" there`},
		{"anyOf at the root", `{"type":"object","anyOf":[{"required":["a"]}]}`, `its keyword "anyOf" at the root is refused by model APIs`},
		{"oneOf at the root", `{"type":"object","oneOf":[{"required":["a"]}]}`, `its keyword "oneOf" at the root is refused by model APIs`},
		{"allOf at the root", `{"type":"object","allOf":[{"required":["a"]}]}`, `its keyword "allOf" at the root is refused by model APIs`},
		{"not at the root", `{"type":"object","not":{}}`, `its keyword "not" at the root is refused by model APIs`},
		{"enum at the root", `{"type":"object","enum":[{}]}`, `its keyword "enum" at the root is refused by model APIs`},
		{"const at the root", `{"type":"object","const":null}`, `its keyword "const" at the root is refused by model APIs`},
		{"behind a reference at the root", `{"$ref":"#/$defs/A","$defs":{"A":{"anyOf":[{}]}}}`, `its keyword "anyOf" at the root is refused by model APIs`},
		{"nothing meets the root", `{"$ref":"#/$defs/A","$defs":{"A":false}}`, `its schema at the root is false: no value meets it`},

		{"a reference round to itself", `{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"properties":{"next":{"$ref":"#/$defs/A"}}}}}`,
			`its reference "#/$defs/A" at "a.next" does not end: it leads round to itself`},
		{"a reference to itself", `{"properties":{"a":{"$ref":"#/properties/a"}}}`, `its reference "#/properties/a" at "a" does not end: it leads round to itself`},
		{"two references to each other", `{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}}`,
			`its reference "#/$defs/A" at "a" does not end: it leads round to itself`},
		{"a reference to the whole", property(`{"items":{"$ref":"#"}}`), `its reference "#" at "a[]" does not end: it leads round to itself`},
		{"an empty reference is one too", property(`{"$ref":""}`), `its reference "" at "a" does not end: it leads round to itself`},
		{"a round by way of allOf", `{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"allOf":[{"$ref":"#/$defs/B"}]},"B":{"anyOf":[{"$ref":"#/$defs/A"}]}}}`,
			`its reference "#/$defs/A" at "a.anyOf[0]" does not end: it leads round to itself`},
		{"a reference to nowhere", property(`{"$ref":"#/$defs/A"}`), `its reference "#/$defs/A" at "a" leads nowhere`},
		{"a reference past the end of a list", `{"properties":{"a":{"anyOf":[{}]},"b":{"$ref":"#/properties/a/anyOf/1"}}}`, `its reference "#/properties/a/anyOf/1" at "b" leads nowhere`},
		{"a reference into a list by no number", `{"properties":{"a":{"anyOf":[{}]},"b":{"$ref":"#/properties/a/anyOf/00"}}}`, `its reference "#/properties/a/anyOf/00" at "b" leads nowhere`},
		{"a reference by name", property(`{"$ref":"#A"}`), `its reference "#A" at "a" leads nowhere`},
		{"a reference that does not decode", property(`{"$ref":"#/%zz"}`), `its reference "#/%zz" at "a" leads nowhere`},
		{"a reference to elsewhere", property(`{"$ref":"https://example.com/a.json"}`), `its reference "https://example.com/a.json" at "a" leads out of the schema, and nothing is fetched`},
		{"a reference that is none", property(`{"$ref":5}`), `its keyword "$ref" at "a" is not a string`},
		{"a reference to what is no schema", `{"properties":{"a":{"$ref":"#/title"}},"title":"t"}`, `its schema at "a" is neither an object nor true or false`},
		{"a constraint that differs beside a reference", `{"properties":{"a":{"$ref":"#/$defs/A","required":["b"]}},"$defs":{"A":{"required":["c"]}}}`,
			`its keyword "required" at "a" is given twice, with values that cannot be merged`},
		{"a constraint that differs beside an allOf", property(`{"type":"string","allOf":[{"type":"null"}]}`), `its keyword "type" at "a" is given twice, with values that cannot be merged`},
		{"a reference that adds to what is closed", `{"properties":{"a":{"$ref":"#/$defs/A","additionalProperties":false}},"$defs":{"A":{"properties":{"b":{}}}}}`,
			`its keyword "additionalProperties" at "a" cannot be merged with the properties of another schema`},
		{"closed behind a reference to which something is added", `{"properties":{"a":{"$ref":"#/$defs/A","properties":{"b":{}}}},"$defs":{"A":{"additionalProperties":{"type":"string"}}}}`,
			`its keyword "additionalProperties" at "a" cannot be merged with the properties of another schema`},

		{"patternProperties", `{"properties":{"filter":{"properties":{"tags":{"patternProperties":{"^x":{}}}}}}}`, `its keyword "patternProperties" at "filter.tags" is refused by model APIs`},
		{"in an alternative", property(`{"anyOf":[{},{"not":{}}]}`), `its keyword "not" at "a.anyOf[1]" is refused by model APIs`},
		{"in a map", `{"additionalProperties":{"contains":{}}}`, `its keyword "contains" at "*" is refused by model APIs`},
		{"in an item", property(`{"items":{"if":{}}}`), `its keyword "if" at "a[]" is refused by model APIs`},
		{"in a property that is named like it", property(`{"properties":{"not":{"not":{}}}}`), `its keyword "not" at "a.not" is refused by model APIs`},
		{"items as a list", property(`{"items":[{}]}`), `its keyword "items" at "a", as a list, is refused by model APIs`},
		{"an allOf of two", property(`{"allOf":[{},{}]}`), `its keyword "allOf" at "a" is refused by model APIs`},
		{"names of one kind", property(`{"propertyNames":{"pattern":"^x"}}`), `its keyword "propertyNames" at "a" is refused by model APIs`},

		{"a name with a blank", `{"properties":{"a b":{}}}`, `its property "a b" at the root has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -`},
		{"a name further down", property(`{"properties":{"$ref":{}}}`), `its property "$ref" at "a" has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -`},
		{"no name", `{"properties":{"":{}}}`, `its property "" at the root has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -`},
		{"a name with a line break", `{"properties":{"a\n":{}}}`, `its property "a" at the root has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -`},

		{"false where something must be", property(`{"items":false}`), `its schema at "a[]" is false: no value meets it`},
		{"a choice of nothing", property(`{"anyOf":[{},false]}`), `its schema at "a.anyOf[1]" is false: no value meets it`},
		{"a property that must and may not be given", `{"properties":{"a":{"properties":{"b":false},"required":["b"]}}}`, `its property "a.b" is required and false: no value meets it`},
		{"a property without a schema", property(`null`), `its schema at "a" is neither an object nor true or false`},

		{"a type that is none", property(`{"type":"any"}`), `its keyword "type" at "a" is not as JSON Schema has it`},
		{"types that are none", property(`{"type":["string","date"]}`), `its keyword "type" at "a" is not as JSON Schema has it`},
		{"no types", property(`{"type":[]}`), `its keyword "type" at "a" is not as JSON Schema has it`},
		{"required, as draft 3 had it", property(`{"required":true}`), `its keyword "required" at "a" is not as JSON Schema has it`},
		{"required by number", `{"required":[1]}`, `its keyword "required" at the root is not as JSON Schema has it`},
		{"a limit, as draft 4 had it", property(`{"minimum":1,"exclusiveMinimum":true}`), `its keyword "exclusiveMinimum" at "a" is not as JSON Schema has it`},
		{"a negative length", property(`{"minLength":-1}`), `its keyword "minLength" at "a" is not as JSON Schema has it`},
		{"properties as a list", property(`{"properties":["b"]}`), `its keyword "properties" at "a" is not as JSON Schema has it`},
		{"no alternative", property(`{"oneOf":[]}`), `its keyword "oneOf" at "a" is not as JSON Schema has it`},

		{"text that would turn the sentence round", "{\"properties\":{\"a\u202e\x7f\":{}}}", `its property "a" at the root has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			got, err := mcp.ModelSchema(json.RawMessage(tt.schema))
			if err == nil {
				t.Fatalf("it is taken, as %s", got)
			}
			if diff := cmp.Diff(tt.why, err.Error()); diff != "" || got != nil {
				t.Errorf("%s\n%s", got, diff)
			}
		})
	}
	for _, keyword := range []string{
		"not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "patternProperties", "unevaluatedProperties",
		"unevaluatedItems", "contains", "minContains", "maxContains", "prefixItems", "additionalItems", "contentSchema", "$dynamicRef", "$recursiveRef",
	} {
		_, err := mcp.ModelSchema(json.RawMessage(property(`{"` + keyword + `":{}}`)))
		if want := fmt.Sprintf("its keyword %q at \"a\" is refused by model APIs", keyword); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", keyword, err, want)
		}
	}
}

// nest puts a schema into properties so many times.
func nest(levels int, schema string) string {
	return strings.Repeat(`{"properties":{"a":`, levels) + schema + strings.Repeat(`}}`, levels)
}

func TestModelSchemasHaveBounds(t *testing.T) {
	t.Parallel()
	const tooLarge = "its input schema takes more than 16 KiB with each reference replaced by what it leads to"
	sized := func(size int) string {
		const around = `{"type":"object","description":"","properties":{}}`
		return fmt.Sprintf(`{"type":"object","description":"%s","properties":{}}`, strings.Repeat("x", size-len(around)))
	}
	laughs := func(levels int, per string) string { // each of the definitions holds the next ten times
		var defs []string
		for i := range levels {
			var parts []string
			for k := range 10 {
				parts = append(parts, fmt.Sprintf(per, k, i+1))
			}
			defs = append(defs, fmt.Sprintf(`"L%d":{"properties":{%s}}`, i, strings.Join(parts, ",")))
		}
		return `{"properties":{"a":{"$ref":"#/$defs/L0"}},"$defs":{` + strings.Join(defs, ",") + fmt.Sprintf(`,"L%d":{}}}`, levels)
	}
	var chain, never, silent []string
	for i := range 6000 {
		chain = append(chain, fmt.Sprintf(`"%d":{"$ref":"#/$defs/%d"}`, i, i+1))
		never = append(never, fmt.Sprintf(`"p%d":false`, i))
		silent = append(silent, fmt.Sprintf(`"x-%d":0`, i))
	}
	references := func(n int, target string) string {
		return strings.TrimSuffix(strings.Repeat(`{"$ref":"`+target+`"},`, n), ",")
	}
	for _, tt := range []struct{ story, schema, why string }{
		{"exactly as large as may be", sized(16 << 10), ""},
		{"one byte more", sized(16<<10 + 1), tooLarge},
		{"large only in what is left out", `{"$defs":{"A":{"description":"` + strings.Repeat("x", 200<<10) + `"}}}`, ""},
		{"too large altogether", `{"$defs":{"A":{"description":"` + strings.Repeat("x", 256<<10) + `"}}}`, "its input schema is larger than 256 KiB"},
		{"twelve levels", nest(11, `{"type":"string"}`), ""},
		{"thirteen levels", nest(12, `{"type":"string"}`), `its schema at "a.a.a.a.a.a.a.a.a.a.a.a" nests deeper than 12 levels`},
		{"deep data", `{"default":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`, ""},
		{"data that is too deep", `{"default":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "its input schema nests deeper than 100 levels"},
		{"deeper than Go reads", `{"default":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, "its input schema is not JSON"},
		{"a billion laughs", laughs(9, `"p%d":{"$ref":"#/$defs/L%d"}`), tooLarge},
		{"a billion laughs in lists", laughs(5, `"p%d":{"items":{"$ref":"#/$defs/L%d"}}`), tooLarge},
		{"a long chain of references", `{"properties":{"a":{"$ref":"#/$defs/0"}},"$defs":{` + strings.Join(chain, ",") + `,"6000":{}}}`, ""},
		{"many long chains", `{"properties":{"a":{"anyOf":[` + references(4000, "#/$defs/0") + `]}},"$defs":{` + strings.Join(chain[:2000], ",") + `,"2000":{}}}`,
			"its references lead through too many schemas"},
		{"many references to much that is left out", `{"properties":{"a":{"anyOf":[` + references(5000, "#/$defs/A") + `]}},"$defs":{"A":{` + strings.Join(silent, ",") + `}}}`,
			"its references lead through too many schemas"},
		{"references that lead far through a long one", `{"properties":{"a":{"anyOf":[` + references(200, "#/$defs/A") +
			`]}},"$defs":{"A":{"$ref":"#/$defs/` + strings.Repeat("x", 75_000) + `"},"` + strings.Repeat("x", 75_000) + `":{}}}`, "its references lead through too many schemas"},
		{"many references to many false ones", `{"properties":{"a":{"anyOf":[` + references(1000, "#/$defs/A") + `]}},"$defs":{"A":{"properties":{` + strings.Join(never, ",") + `}}}}`,
			"its references lead through too many schemas"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			got, err := mcp.ModelSchema(json.RawMessage(tt.schema))
			switch {
			case tt.why == "" && err != nil:
				t.Error(err)
			case tt.why != "" && (err == nil || err.Error() != tt.why):
				t.Errorf("it is %.100s, %v; want %s", got, err, tt.why)
			}
		})
	}
}

// A tool that runs only as a task is in the catalogue, and it is known that it cannot be called.
func TestToolsThatRunOnlyAsTasks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story, execution string
		callable         bool
	}{
		{"required", `{"taskSupport":"required"}`, false},
		{"required, among other things", `{"other":[1],"taskSupport":"required","timeout":"x"}`, false},
		{"optional", `{"taskSupport":"optional"}`, true},
		{"forbidden", `{"taskSupport":"forbidden"}`, true},
		{"something else", `{"taskSupport":"REQUIRED"}`, true},
		{"of another type", `{"taskSupport":true}`, true},
		{"nothing about it", `{}`, true},
		{"null", `null`, true},
		{"no object", `["required"]`, true},
		{"a word", `"required"`, true},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{
				{Name: "slow", Entry: json.RawMessage(`{"name":"slow","inputSchema":{"type":"object"},"execution":` + tt.execution + `}`)},
				{Name: "quick"},
			}})
			catalogue, _, err := newClient(t, parts{}).ListTools(t.Context(), docs(fake.URL), ample)
			if err != nil || len(catalogue.Tools) != 2 || len(catalogue.Skipped) != 0 {
				t.Fatalf("%+v, %v", catalogue, err)
			}
			why := ""
			if !tt.callable {
				why = `it runs only as a task (execution.taskSupport "required"), which legwork does not do`
			}
			if got := catalogue.Tools[0].NotCallable; got != why {
				t.Errorf("it is not callable because %q, want %q", got, why)
			}
			if got := catalogue.Tools[1].NotCallable; got != "" {
				t.Errorf("the other is not callable because %q", got)
			}
		})
	}
}

func TestNotCallable(t *testing.T) {
	t.Parallel()
	failure := mcp.NotCallable("docs", "slow\x00", "it runs only as a task")
	want := &mcp.Failure{Kind: mcp.KindInvalidRequest, Asked: mcp.AskedNo, Server: "docs", Message: `Invalid request: nothing was sent and tool "slow" of server "docs" ` +
		`was not called, because it runs only as a task. Import its catalogue again if the server has changed.`}
	if diff := cmp.Diff(want, failure); diff != "" {
		t.Error(diff)
	}
}

// checkModelSchema reads a result in its own way.
func checkModelSchema(t *testing.T, value any, level int) {
	t.Helper()
	schema, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("a schema is %v", value)
	}
	if level > 12 {
		t.Fatal("it has more than 12 levels")
	}
	kind := fmt.Sprint(schema["type"])
	if _, ok := schema["items"]; strings.Contains(kind, "array") && !ok {
		t.Fatal("an array has no items")
	}
	for keyword, value := range schema {
		switch keyword {
		case "properties":
			for name, property := range value.(map[string]any) {
				if len(name) == 0 || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != "" {
					t.Fatalf("a property is called %q", name)
				}
				checkModelSchema(t, property, level+1)
			}
		case "anyOf", "oneOf":
			if level == 1 {
				t.Fatalf("%s is at the root", keyword)
			}
			for _, entry := range value.([]any) {
				checkModelSchema(t, entry, level+1)
			}
		case "items":
			checkModelSchema(t, value, level+1)
		case "additionalProperties":
			if _, ok := value.(bool); !ok {
				checkModelSchema(t, value, level+1)
			}
		case "enum", "const":
			if level == 1 {
				t.Fatalf("%s is at the root", keyword)
			}
		case "$ref", "$defs", "definitions", "$schema", "$id", "$comment", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary",
			"not", "if", "then", "else", "allOf", "dependentSchemas", "dependentRequired", "dependencies", "patternProperties", "propertyNames",
			"unevaluatedProperties", "unevaluatedItems", "contains", "minContains", "maxContains", "prefixItems", "additionalItems", "contentSchema",
			"$dynamicRef", "$recursiveRef":
			t.Fatalf("the keyword %s is there", keyword)
		default:
			if strings.HasPrefix(keyword, "x-") {
				t.Fatalf("the keyword %s is there", keyword)
			}
		}
	}
}

func FuzzModelSchema(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `[]`, `true`, `{"type":"object","properties":{"a":{"$ref":"#/$defs/A","title":"t"},"b":false},"required":["a"],"$defs":{"A":{"type":["array","null"]}}}`,
		`{"$ref":"#/definitions/A","definitions":{"A":{"properties":{"a":{"$ref":"#/definitions/A"}}}}}`, `{"properties":{"a":{"allOf":[{"$ref":"#/$defs/~0~1%25"}],"default":[9007199254740993]}},"$defs":{"~/%":{"enum":[{"$ref":"#"}]}}}`,
		`{"properties":{"a":{"anyOf":[{"items":true},{"additionalProperties":{"x-a":null}}],"examples":[{}],"const":null}},"additionalProperties":false}`,
		`{"a":1,"a":{},"\u00e9<":[1,[2]],"type":"object","default":"\ud800\u0000","properties":[]}`, "{\"title\":\"\xff\",\"\xff\":0,\"\xfe\":0}", nest(12, "{}"),
		`{"properties":{"a":{"propertyNames":{"type":"string"},"$ref":"#/properties/b"},"b":{"oneOf":[{"$ref":"#/$defs/0"}]}},"$defs":[{"minimum":-1e5,"minLength":1}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, schema []byte) {
		got, err := mcp.ModelSchema(schema)
		if again, errAgain := mcp.ModelSchema(schema); !bytes.Equal(got, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("it is %s, %v now and %s, %v again", got, err, again, errAgain)
		}
		if err != nil {
			why := err.Error()
			if got != nil || why == "" || !utf8.ValidString(why) || utf8.RuneCountInString(why) > 1000 ||
				strings.ContainsFunc(why, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
				t.Fatalf("%s, %q", got, why)
			}
			return
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, got); err != nil || !bytes.Equal(compact.Bytes(), got) || !utf8.Valid(got) || len(got) > 16<<10 {
			t.Fatalf("of %d bytes: %v: %s", len(got), err, got)
		}
		var value any
		dec := json.NewDecoder(bytes.NewReader(got))
		dec.UseNumber()
		if err := dec.Decode(&value); err != nil {
			t.Fatal(err)
		}
		checkModelSchema(t, value, 1)
		if root := value.(map[string]any); root["type"] != "object" || root["properties"] == nil {
			t.Fatalf("it has no type or no properties: %s", got)
		}
		if again, err := mcp.ModelSchema(got); err != nil || !bytes.Equal(got, again) {
			t.Fatalf("made again of itself\n%s\nis\n%s, %v", got, again, err)
		}
	})
}
