package mcp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	"golang.org/x/net/http/httpproxy"
)

// GateOptions say which addresses beyond the public internet may be dialled.
type GateOptions struct {
	// AllowPrivateNetworks allows loopback, RFC 1918, shared (100.64.0.0/10) and unique local addresses. Link-local
	// addresses, where clouds keep their metadata services, stay refused unless AllowedHosts names them.
	AllowPrivateNetworks bool
	// AllowedHosts are host names as they stand in a URL, "*.suffix" for all names under one, addresses, or prefixes
	// such as 10.1.0.0/16. What is named here is dialled wherever it leads.
	AllowedHosts []string
	// Proxy is the HTTP proxy on the way out, as the environment has it (HTTPS_PROXY, HTTP_PROXY, NO_PROXY); its zero value
	// is none. What goes through it is resolved and dialled by the proxy: of that the gate judges what the URL itself says.
	Proxy httpproxy.Config
}

// Gate decides which addresses may be dialled. It judges the address of the connection itself, after the name was
// resolved, so a public name that leads to a private address is refused too. Safe for concurrent use.
type Gate struct {
	names    map[string]bool
	suffixes []string
	guardian *ssrf.Guardian
	through  func(*url.URL) (*url.URL, error) // which proxy a URL goes through
	proxies  map[string]bool                  // by the address that is dialled; an operator named them
}

var privateV4 = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
}

var privateV6 = []netip.Prefix{netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7")}

// NewGate builds a gate. The error names the entry of AllowedHosts that is none.
func NewGate(opts GateOptions) (*Gate, error) {
	gate := &Gate{names: map[string]bool{}, proxies: map[string]bool{}, through: opts.Proxy.ProxyFunc()}
	for _, scheme := range []string{"http", "https"} {
		proxy, err := gate.through(&url.URL{Scheme: scheme, Host: "proxied.invalid"})
		if err != nil {
			return nil, fmt.Errorf("the proxy for %s URLs: %w", scheme, err)
		}
		if proxy != nil {
			gate.proxies[net.JoinHostPort(proxy.Hostname(), cmp.Or(proxy.Port(), defaultPorts[proxy.Scheme]))] = true
		}
	}
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

var defaultPorts = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

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

// grantEnd is the context key of a pointer to the moment that a leg's grant ends. net/http dials on a context without the request's
// deadline, so that another request may use the connection; a dial of ours must end with the leg that wanted it.
type grantEnd struct{}

// proxy says which proxy a request goes through. A host that is an address, or that the proxy's resolver would take for one,
// is judged here, because nobody judges it afterwards.
func (g *Gate) proxy(r *http.Request) (*url.URL, error) {
	proxy, err := g.through(r.URL)
	if proxy == nil || err != nil {
		return nil, err
	}
	host := r.URL.Hostname()
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	address, notOne := netip.ParseAddr(name)
	switch {
	case g.allowsName(host):
	case notOne == nil:
		network := "tcp4"
		if address = address.Unmap(); address.Is6() {
			network = "tcp6"
		}
		err = g.guardian.Safe(network, netip.AddrPortFrom(address.WithZone(""), 443).String(), nil)
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		err = g.guardian.Safe("tcp4", "127.0.0.1:443", nil)
	default:
		// Resolvers read 127.1 and 0x7f000001 as addresses.
		if last := name[strings.LastIndexByte(name, '.')+1:]; last != "" && last[0] >= '0' && last[0] <= '9' {
			err = ssrf.ErrProhibitedIP
		}
	}
	if err != nil {
		return nil, &refusedAddress{host: host, address: host}
	}
	return proxy, nil
}

// proxyRefused is a proxy that opened no way to the server.
type proxyRefused struct{ status int }

func (p *proxyRefused) Error() string {
	if p.status == http.StatusProxyAuthRequired {
		return "the proxy on the way wants a user and password of its own (HTTP 407): they belong into HTTPS_PROXY"
	}
	return fmt.Sprintf("the proxy on the way answered HTTP %d and opened no way to it", p.status)
}

func connectedThrough(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return &proxyRefused{status: resp.StatusCode}
	}
	return nil
}

func (g *Gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if end, ok := ctx.Value(grantEnd{}).(*time.Time); ok {
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
	if !g.allowsName(host) && !g.proxies[address] {
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
// kept alive across operations, and no time limit but the TLS handshake's stands beside a leg's grant.
func NewHTTPTransport(gate *Gate) *http.Transport {
	return &http.Transport{
		DialContext:            gate.dial,
		Proxy:                  gate.proxy,
		OnProxyConnectResponse: connectedThrough,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    30 * time.Second, // bounds what a dial may leave behind when its leg has ended
		MaxIdleConns:           2048,
		MaxIdleConnsPerHost:    256, // the default of two makes a busy worker dial for nearly every leg
		// Common servers close an idle connection after 5 s. Leaving first avoids sending into a closing connection,
		// which would be a connection_lost that nobody can tell from a real one.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		ReadBufferSize:         2 << 10, // of each connection; most requests and answers are smaller, and thousands may wait at once
		WriteBufferSize:        2 << 10,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
}
