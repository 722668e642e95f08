package mcp_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestGateRefuses(t *testing.T) {
	t.Parallel()
	private := mcp.GateOptions{AllowPrivateNetworks: true}
	allow := func(hosts ...string) mcp.GateOptions { return mcp.GateOptions{AllowedHosts: hosts} }
	for _, tt := range []struct {
		story string
		gate  mcp.GateOptions
		host  string
		says  string // what stands in the sentence
	}{
		{"loopback", mcp.GateOptions{}, "127.0.0.1", `"127.0.0.1" of server "docs" is an address that is not on the public internet`},
		{"all of loopback", mcp.GateOptions{}, "127.9.9.9", `"127.9.9.9" of server "docs" is an address`},
		{"no address", mcp.GateOptions{}, "0.0.0.0", `"0.0.0.0"`},
		{"RFC 1918", mcp.GateOptions{}, "10.0.0.1", `"10.0.0.1"`},
		{"RFC 1918, the middle", mcp.GateOptions{}, "172.31.255.255", `"172.31.255.255"`},
		{"RFC 1918, the home", mcp.GateOptions{}, "192.168.1.1", `"192.168.1.1"`},
		{"shared space", mcp.GateOptions{}, "100.64.0.1", `"100.64.0.1"`},
		{"IPv6 loopback", mcp.GateOptions{}, "[::1]", `"::1"`},
		{"unique local", mcp.GateOptions{}, "[fd00::1]", `"fd00::1"`},
		{"IPv4 in IPv6", mcp.GateOptions{}, "[::ffff:127.0.0.1]", `"::ffff:127.0.0.1" of server "docs" leads to 127.0.0.1, an address`},
		{"IPv4 in IPv6, in hex", mcp.GateOptions{}, "[::ffff:7f00:1]", `leads to 127.0.0.1`},
		{"IPv4 in NAT64", mcp.GateOptions{}, "[64:ff9b::7f00:1]", `"64:ff9b::7f00:1"`},
		{"a name that leads to loopback", mcp.GateOptions{}, "localhost", `"localhost" of server "docs" leads to `},
		{"a public name that leads to loopback", mcp.GateOptions{}, "docs.internal.test", `"docs.internal.test" of server "docs" leads to 127.0.0.1, an address`},
		{"a name that leads to the metadata service", mcp.GateOptions{}, "metadata.test", `leads to 169.254.169.254`},
		{"the metadata service", mcp.GateOptions{}, "169.254.169.254", `"169.254.169.254"`},
		{"link-local where private is allowed", private, "169.254.169.254", `"169.254.169.254"`},
		{"link-local by name where private is allowed", private, "metadata.test", `leads to 169.254.169.254`},
		{"IPv6 link-local where private is allowed", private, "[fe80::1]", `"fe80::1"`},
		{"metadata in IPv6 where private is allowed", private, "[::ffff:169.254.169.254]", `leads to 169.254.169.254`},
		{"multicast where private is allowed", private, "224.0.0.1", `"224.0.0.1"`},
		{"no address where private is allowed", private, "0.0.0.0", `"0.0.0.0"`},
		{"another name than the allowed", allow("crm.internal.test"), "docs.internal.test", `"docs.internal.test"`},
		{"the name that the suffix is under", allow("*.internal.test"), "internal.test", `"internal.test"`},
		{"a name that only ends alike", allow("*.internal.test"), "fakeinternal.test", `"fakeinternal.test"`},
		{"another address than the allowed", allow("127.0.0.2"), "127.0.0.1", `"127.0.0.1"`},
		{"an address out of the prefix", allow("127.0.1.0/24"), "127.0.0.1", `"127.0.0.1"`},
		{"an IPv6 prefix says nothing of IPv4", allow("::/0"), "127.0.0.1", `"127.0.0.1"`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			listener := mcptest.Wedged(t)
			_, port, err := net.SplitHostPort(listener.Address)
			if err != nil {
				t.Fatal(err)
			}
			server := docs("http://" + tt.host + ":" + port + "/mcp")
			server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
			_, spent, err := newClient(t, parts{gate: &tt.gate}).Ping(t.Context(), server, installation(5*time.Second))
			f := failure(t, err)
			if f.Kind != mcp.KindRefusedHost || f.Asked != mcp.AskedNo || !strings.Contains(f.Message, tt.says) ||
				!strings.Contains(f.Message, "LEGWORK_ALLOWED_HOSTS") {
				t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
			}
			if got := legs(spent); len(got) != 1 || got[0] != (leg{"initialize", "refused_host", 0}) {
				t.Errorf("legs %v", got)
			}
			if n := listener.Connections(t); n != 0 {
				t.Errorf("%d connections were made", n)
			}
		})
	}
}

func TestGateAllows(t *testing.T) {
	t.Parallel()
	allow := func(hosts ...string) mcp.GateOptions { return mcp.GateOptions{AllowedHosts: hosts} }
	for _, tt := range []struct {
		story string
		gate  mcp.GateOptions
		host  string
	}{
		{"private networks", mcp.GateOptions{AllowPrivateNetworks: true}, "127.0.0.1"},
		{"private networks by name", mcp.GateOptions{AllowPrivateNetworks: true}, "docs.internal.test"},
		{"private networks, IPv4 in IPv6", mcp.GateOptions{AllowPrivateNetworks: true}, "[::ffff:127.0.0.1]"},
		{"the name", allow("other.test", "docs.internal.test"), "docs.internal.test"},
		{"the name in capitals and with its dot", allow("Docs.Internal.Test."), "DOCS.internal.test"},
		{"all names under one", allow("*.internal.test"), "docs.internal.test"},
		{"all names under one, two deep", allow("*.internal.test"), "a.docs.internal.test"},
		{"the address", allow("127.0.0.1"), "127.0.0.1"},
		{"the address, for a name that leads to it", allow("127.0.0.1"), "docs.internal.test"},
		{"the address in IPv6 form", allow("::ffff:127.0.0.1"), "127.0.0.1"},
		{"a prefix", allow("127.0.0.1/8"), "127.0.0.1"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{})
			server := docs(strings.Replace(fake.URL, "127.0.0.1", tt.host, 1))
			if _, _, err := newClient(t, parts{gate: &tt.gate}).Ping(t.Context(), server, ample); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGateAllowsIPv6(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6")
	}
	address := listener.Addr().String()
	listener.Close() // refused is what shows that the gate let it pass
	for _, gate := range []mcp.GateOptions{
		{AllowPrivateNetworks: true}, {AllowedHosts: []string{"::1"}}, {AllowedHosts: []string{"[::1]"}}, {AllowedHosts: []string{"::/64"}},
	} {
		_, _, err := newClient(t, parts{gate: &gate}).Ping(t.Context(), docs("http://"+address), ample)
		if f := failure(t, err); f.Kind != mcp.KindUnreachable {
			t.Errorf("gate %+v: %s: %s", gate, f.Kind, f.Message)
		}
	}
}

func TestGateNamesTheEntryThatIsNone(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"", "*", "*.", "*.*.a", "a*b", "http://a", "a:80", "a/b", "10.0.0.0/33", "a b", "."} {
		if _, err := mcp.NewGate(mcp.GateOptions{AllowedHosts: []string{"docs.test", entry}}); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) {
			t.Errorf("allowed host %q gives %v", entry, err)
		}
	}
}
