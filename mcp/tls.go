package mcp

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync"
	"time"
)

// identity is one server's TLS, read for one operation.
type identity struct {
	sum         [sha256.Size]byte // of all that follows: what is the same may share connections
	ca          []byte
	certificate []tls.Certificate
}

// identityKey is the context key of a request's *identity, which [Connections] reads.
type identityKey struct{}

// identity reads what the server's TLS refers to; nil where it refers to nothing.
func (s Server) identity() (*identity, *Failure) {
	if s.TLS == (TLS{}) {
		return nil, nil
	}
	id := &identity{}
	var parts [3]string
	for i, reference := range []string{s.TLS.CA, s.TLS.Certificate, s.TLS.Key} {
		if reference == "" {
			continue
		}
		var why string
		var cause error
		if parts[i], why, cause = read(reference, maxPEM); why != "" {
			return nil, s.missing(reference, why, cause)
		}
	}
	if s.TLS.CA != "" {
		id.ca = []byte(parts[0])
		if !x509.NewCertPool().AppendCertsFromPEM(id.ca) {
			return nil, s.missing(s.TLS.CA, "holds no certificate (PEM)", nil)
		}
	}
	if s.TLS.Certificate != "" {
		pair, err := tls.X509KeyPair([]byte(parts[1]), []byte(parts[2]))
		if err != nil { // its text tells the two apart and quotes neither
			return nil, s.missing(s.TLS.Certificate, "and its key "+quote(s.TLS.Key)+" cannot be used ("+quote(err.Error())+")", err)
		}
		id.certificate = []tls.Certificate{pair}
	}
	sum := sha256.New()
	for _, part := range parts {
		digest := sha256.Sum256([]byte(part)) // of a fixed length, so that no two lists of parts read alike
		sum.Write(digest[:])
	}
	sum.Sum(id.sum[:0])
	return id, nil
}

// config is what a connection of this identity is made with.
func (id *identity) config(base *tls.Config) *tls.Config {
	config := &tls.Config{}
	if base != nil {
		config = base.Clone()
	}
	if id.ca != nil {
		if config.RootCAs == nil {
			// Where the system has no certificates, the private ones are all there is.
			if system, err := x509.SystemCertPool(); err == nil {
				config.RootCAs = system
			} else {
				config.RootCAs = x509.NewCertPool()
			}
		} else {
			config.RootCAs = config.RootCAs.Clone()
		}
		config.RootCAs.AppendCertsFromPEM(id.ca)
	}
	if id.certificate != nil {
		config.Certificates = id.certificate
	}
	return config
}

// maxIdentities bounds how many private CAs and client certificates connections are kept for. A rotated certificate is a new
// one; past the bound the one that was used longest ago goes.
const maxIdentities = 64

// Connections are the connections that a worker shares: those of one transport for all servers, and apart from them those
// of servers that have a private CA or a client certificate, so that no other server is trusted by that CA or shown that
// certificate. Safe for concurrent use.
type Connections struct {
	base *http.Transport

	mu    sync.Mutex
	apart map[[sha256.Size]byte]*apart
}

type apart struct {
	transport *http.Transport
	used      time.Time
}

// NewConnections shares the connections of base, which is [NewHTTPTransport]'s outside tests.
func NewConnections(base *http.Transport) *Connections {
	return &Connections{base: base, apart: map[[sha256.Size]byte]*apart{}}
}

// RoundTrip sends a request over a connection of its server's.
func (c *Connections) RoundTrip(r *http.Request) (*http.Response, error) {
	id, _ := r.Context().Value(identityKey{}).(*identity)
	if id == nil {
		return c.base.RoundTrip(r)
	}
	return c.of(id).RoundTrip(r)
}

func (c *Connections) of(id *identity) *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.apart[id.sum]
	if a == nil {
		c.makeRoom()
		transport := c.base.Clone()
		transport.TLSClientConfig = id.config(c.base.TLSClientConfig)
		a = &apart{transport: transport}
		c.apart[id.sum] = a
	}
	a.used = time.Now()
	return a.transport
}

func (c *Connections) makeRoom() {
	if len(c.apart) < maxIdentities {
		return
	}
	var oldest [sha256.Size]byte
	for sum, a := range c.apart {
		if first, ok := c.apart[oldest]; !ok || a.used.Before(first.used) {
			oldest = sum
		}
	}
	c.apart[oldest].transport.CloseIdleConnections() // those in use close when they are done
	delete(c.apart, oldest)
}

// CloseIdleConnections closes every connection that no leg is on.
func (c *Connections) CloseIdleConnections() {
	c.base.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.apart {
		a.transport.CloseIdleConnections()
	}
}

// TLSInfo is how a connection to a server was secured.
type TLSInfo struct {
	Version   string    `json:"version"`  // such as "TLS 1.3"
	Protocol  string    `json:"protocol"` // what runs over it, such as "h2"; empty is HTTP/1.1
	Subject   string    `json:"subject"`  // of the server's certificate
	Issuer    string    `json:"issuer"`
	ExpiresAt time.Time `json:"expires_at"`
}

// tlsInfo is nil where there was no TLS.
func tlsInfo(state *tls.ConnectionState) *TLSInfo {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	leaf := state.PeerCertificates[0]
	return &TLSInfo{
		Version: tls.VersionName(state.Version), Protocol: state.NegotiatedProtocol,
		Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), ExpiresAt: leaf.NotAfter,
	}
}
