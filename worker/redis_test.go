package worker

import (
	"strings"
	"testing"
)

func TestCheckInfo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, info, want string }{
		{"a Redis as it should be", "redis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n", ""},
		{"the oldest that will do", "redis_version:6.2.0\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"a newer major version", "redis_version:8.0.1\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"one that says nothing", "# Server\r\n", ""},
		{"too old by a minor version", "redis_version:6.0.16\r\nmaxmemory_policy:noeviction\r\n", "version 6.0.16: legwork needs 6.2"},
		{"too old by a major version", "redis_version:5.9.9\r\n", "version 5.9.9"},
		{"one that evicts", "redis_version:7.0.0\r\nmaxmemory_policy:allkeys-lru\r\n", "set maxmemory-policy to noeviction"},
		{"a replica", "redis_version:7.0.0\r\nrole:slave\r\n", "point LEGWORK_REDIS_URL at the primary"},
		{"one that is loading", "redis_version:7.0.0\r\nloading:1\r\n", "still loading"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := checkInfo(parseInfo(tt.info))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want …%s…", err, tt.want)
			}
		})
	}
	both := checkInfo(parseInfo("redis_version:5.0.0\r\nmaxmemory_policy:volatile-ttl\r\n"))
	if both == nil || !strings.Contains(both.Error(), "5.0.0") || !strings.Contains(both.Error(), "volatile-ttl") {
		t.Errorf("both problems in one answer, got %v", both)
	}
}
