package mcp

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// GateOptions say which addresses beyond the public internet may be dialled.
type GateOptions struct {
	// AllowPrivateNetworks allows loopback, RFC 1918, shared (100.64.0.0/10) and unique local addresses. Link-local
	// addresses, where clouds keep their metadata services, stay refused unless AllowedHosts names them.
	AllowPrivateNetworks bool
	// AllowedHosts are host names as they stand in a URL, "*.suffix" for all names under one, addresses, or prefixes
	// such as 10.1.0.0/16. What is named here is dialled wherever it leads.
	AllowedHosts []string
}

// Gate decides which addresses may be dialled. It judges the address of the connection itself, after the name was
// resolved, so a public name that leads to a private address is refused too. Safe for concurrent use.
type Gate struct {
	names    map[string]bool
	suffixes []string
	guardian *ssrf.Guardian
}

var privateV4 = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
}

var privateV6 = []netip.Prefix{netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7")}

// NewGate builds a gate. The error names the entry of AllowedHosts that is none.
func NewGate(opts GateOptions) (*Gate, error) {
	gate := &Gate{names: map[string]bool{}}
	var v4, v6 []netip.Prefix
	if opts.AllowPrivateNetworks {
		v4, v6 = append(v4, privateV4...), append(v6, privateV6...)
	}
	for _, entry := range opts.AllowedHosts {
		if prefix, ok := parsePrefix(entry); ok {
			if prefix.Addr().Is4() {
				v4 = append(v4, prefix)
			} else {
				v6 = append(v6, prefix)
			}
			continue
		}
		name := strings.TrimSuffix(strings.ToLower(entry), ".")
		suffix, wild := strings.CutPrefix(name, "*.")
		if suffix == "" || strings.ContainsAny(suffix, "*/:@ ") {
			return nil, fmt.Errorf("allowed host %q is no host name, *.suffix, address or prefix", entry)
		}
		if wild {
			gate.suffixes = append(gate.suffixes, "."+suffix)
		} else {
			gate.names[name] = true
		}
	}
	gate.guardian = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	return gate, nil
}

func parsePrefix(entry string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		return prefix.Masked(), true
	}
	if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	return netip.Prefix{}, false
}

func (g *Gate) allowsName(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if g.names[host] {
		return true
	}
	for _, suffix := range g.suffixes {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// refusedAddress is the dialer's error for an address that the gate refuses.
type refusedAddress struct {
	host    string // as the URL has it
	address string // as it was about to be dialled
}

func (r *refusedAddress) Error() string {
	return fmt.Sprintf("the host gate refuses %s (%s)", r.host, r.address)
}

// grantEnd is the context key of the moment that a leg's grant ends. net/http dials on a context without the request's
// deadline, so that another request may use the connection; a dial of ours must end with the leg that wanted it.
type grantEnd struct{}

func (g *Gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if end, ok := ctx.Value(grantEnd{}).(time.Time); ok {
		var cancel context.CancelFunc
		// A little later than the leg itself, so that it is always the leg that says why.
		ctx, cancel = context.WithDeadline(ctx, end.Add(time.Second))
		defer cancel()
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAlive: 15 * time.Second}
	if !g.allowsName(host) {
		dialer.Control = func(network, resolved string, conn syscall.RawConn) error {
			if g.guardian.Safe(network, resolved, conn) != nil {
				if ip, _, err := net.SplitHostPort(resolved); err == nil {
					resolved = ip
				}
				return &refusedAddress{host: host, address: resolved}
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}

// NewHTTPTransport builds the one http.Transport that a worker shares: every connection passes the gate, connections are
// kept alive across operations, and no time limit but the TLS handshake's stands beside a leg's grant. It uses no proxy.
func NewHTTPTransport(gate *Gate) *http.Transport {
	return &http.Transport{
		DialContext:         gate.dial,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 30 * time.Second, // bounds what a dial may leave behind when its leg has ended
		MaxIdleConns:        2048,
		MaxIdleConnsPerHost: 256, // the default of two makes a busy worker dial for nearly every leg
		// Common servers close an idle connection after 5 s. Leaving first avoids sending into a closing connection,
		// which would be a connection_lost that nobody can tell from a real one.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
}
