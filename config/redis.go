package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
)

const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

var errEncoding = errors.New("cannot be taken apart: percent-encode special characters in its user name and password (/ is %2F, @ is %40, # is %23)")

// redisParts is a Redis URL taken apart. [url.Parse] and asynq's own parser are no help: the first refuses lists of hosts
// and quotes the whole URL, password included, in its errors; the second drops user names, ports that are left out, and
// every parameter that it does not know.
type redisParts struct {
	username, password string
	hosts              string
	path               string
	parameters         url.Values
}

// parseRedisURL reads every form of URL that asynq takes, and cluster and TLS forms beside it. Its errors hold no part of
// the URL that may be a password.
func parseRedisURL(raw string) (asynq.RedisConnOpt, error) {
	scheme, rest, _ := strings.Cut(raw, "://")
	parse, known := map[string]func(redisParts, *tls.Config) (asynq.RedisConnOpt, error){
		"redis": redisServer, "rediss": redisServer,
		"redis-socket":   redisSocket,
		"redis-sentinel": redisSentinels, "rediss-sentinel": redisSentinels,
		"redis-cluster": redisCluster, "rediss-cluster": redisCluster,
	}[scheme]
	if !known {
		return nil, errors.New("must begin with redis://, rediss://, redis-socket://, redis-sentinel://, rediss-sentinel://, redis-cluster:// or rediss-cluster://")
	}
	parts, err := takeApart(rest)
	if err != nil {
		return nil, err
	}
	var secure *tls.Config
	if strings.HasPrefix(scheme, "rediss") {
		secure = &tls.Config{MinVersion: tls.VersionTLS12} // the name to verify is each address's own
	}
	return parse(parts, secure)
}

func takeApart(rest string) (redisParts, error) {
	var parts redisParts
	if strings.Contains(rest, "#") {
		return parts, errEncoding
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	parts.hosts = authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		username, password, _ := strings.Cut(authority[:at], ":")
		parts.hosts = authority[at+1:]
		var err, err2 error
		parts.username, err = url.PathUnescape(username)
		parts.password, err2 = url.PathUnescape(password)
		if err != nil || err2 != nil {
			return parts, errEncoding
		}
	}
	if strings.Contains(path, "@") || strings.Contains(query, "@") {
		return parts, errEncoding // a / or ? in a password has ended the authority too early
	}
	var err error
	if parts.path, err = url.PathUnescape(path); err != nil {
		return parts, errEncoding
	}
	if parts.parameters, err = url.ParseQuery(query); err != nil {
		return parts, errEncoding
	}
	return parts, nil
}

func redisServer(parts redisParts, secure *tls.Config) (asynq.RedisConnOpt, error) {
	if err := parts.allow(); err != nil {
		return nil, err
	}
	addresses, err := parts.addresses(redisPort)
	if err != nil {
		return nil, err
	}
	if len(addresses) > 1 {
		return nil, errors.New("names several hosts: redis:// takes one; use redis-sentinel:// or redis-cluster://")
	}
	db, err := database(parts.path)
	if err != nil {
		return nil, err
	}
	return asynq.RedisClientOpt{
		Addr: addresses[0], Username: parts.username, Password: parts.password, DB: db, TLSConfig: secure,
	}, nil
}

func redisSocket(parts redisParts, _ *tls.Config) (asynq.RedisConnOpt, error) {
	if err := parts.allow("db"); err != nil {
		return nil, err
	}
	if parts.hosts != "" || parts.path == "" {
		return nil, errors.New("must name the socket's path after three slashes: redis-socket:///run/redis.sock")
	}
	db, err := database(parts.parameters.Get("db"))
	if err != nil {
		return nil, err
	}
	return asynq.RedisClientOpt{
		Network: "unix", Addr: "/" + parts.path, Username: parts.username, Password: parts.password, DB: db,
	}, nil
}

func redisSentinels(parts redisParts, secure *tls.Config) (asynq.RedisConnOpt, error) {
	if err := parts.allow("master", "username", "password"); err != nil {
		return nil, err
	}
	addresses, err := parts.addresses(sentinelPort)
	if err != nil {
		return nil, err
	}
	master := parts.parameters.Get("master")
	if master == "" {
		return nil, errors.New("does not say which master the sentinels watch: add ?master=NAME")
	}
	db, err := database(parts.path)
	if err != nil {
		return nil, err
	}
	return asynq.RedisFailoverClientOpt{
		MasterName: master, SentinelAddrs: addresses,
		SentinelUsername: parts.username, SentinelPassword: parts.password,
		Username: parts.parameters.Get("username"), Password: parts.parameters.Get("password"),
		DB: db, TLSConfig: secure,
	}, nil
}

func redisCluster(parts redisParts, secure *tls.Config) (asynq.RedisConnOpt, error) {
	if err := parts.allow(); err != nil {
		return nil, err
	}
	addresses, err := parts.addresses(redisPort)
	if err != nil {
		return nil, err
	}
	if db, err := database(parts.path); err != nil || db != 0 {
		return nil, errors.New("chooses a database: a cluster has only database 0, so leave the path out")
	}
	return asynq.RedisClusterClientOpt{
		Addrs: addresses, Username: parts.username, Password: parts.password, TLSConfig: secure,
	}, nil
}

// addresses splits the list of hosts and gives each the port that it leaves out.
func (p redisParts) addresses(port string) ([]string, error) {
	var addresses []string
	for entry := range strings.SplitSeq(p.hosts, ",") {
		u := url.URL{Host: entry}
		host, given := u.Hostname(), u.Port()
		if host == "" {
			return nil, errors.New("names no host")
		}
		if given == "" {
			given = port
		}
		address := net.JoinHostPort(host, given)
		if entry != address && entry != strings.TrimSuffix(address, ":"+given) {
			return nil, errors.New("has a port that is no number; a / in a password must be written as %2F")
		}
		if n, err := strconv.ParseUint(given, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port that is not between 1 and 65535")
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// allow refuses parameters that would be ignored.
func (p redisParts) allow(known ...string) error {
	left := make(map[string]bool, len(known))
	for _, name := range known {
		left[name] = true
	}
	for name := range p.parameters {
		if !left[name] {
			return fmt.Errorf("has a parameter ?%s= that is not known here", name)
		}
	}
	return nil
}

func database(text string) (int, error) {
	text = strings.Trim(text, "/")
	if text == "" {
		return 0, nil
	}
	db, err := strconv.Atoi(text)
	if err != nil || db < 0 {
		return 0, errors.New("has a database that is no number: write redis://HOST:PORT/0, or ?db=0 for a socket")
	}
	return db, nil
}
