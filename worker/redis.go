package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// CheckRedis checks that the queue can keep its promises on this Redis: reachable, 6.2 or newer, and never evicting keys.
// The error says what to change.
func CheckRedis(ctx context.Context, opt asynq.RedisConnOpt) error {
	client, err := openRedis(opt)
	if err != nil {
		return err
	}
	defer client.Close()
	text, err := client.Info(ctx).Result()
	if err != nil {
		return unreachableRedis(err)
	}
	return checkInfo(parseInfo(text))
}

// openRedis makes a client of the queue's Redis, which connects when it is used.
func openRedis(opt asynq.RedisConnOpt) (redis.UniversalClient, error) {
	client, ok := opt.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("this form of Redis connection (%T) is not known", opt)
	}
	return client, nil
}

func unreachableRedis(err error) error {
	return fmt.Errorf("cannot reach Redis, correct LEGWORK_REDIS_URL or start it: %w", err)
}

// checkInfo judges what INFO says. A field that is missing is not held against a server that speaks the protocol but
// reports less than Redis does.
func checkInfo(info map[string]string) error {
	var problems []error
	if version, ok := info["redis_version"]; ok && !atLeast(version, 6, 2) {
		problems = append(problems, fmt.Errorf("the Redis is of version %s: legwork needs 6.2 or newer", version))
	}
	if policy, ok := info["maxmemory_policy"]; ok && policy != "noeviction" {
		problems = append(problems, fmt.Errorf("the Redis may drop tasks when memory is short (maxmemory-policy is %s): set maxmemory-policy to noeviction", policy))
	}
	if info["loading"] == "1" {
		problems = append(problems, errors.New("the Redis is still loading its data: start the worker when it is done"))
	}
	if role := info["role"]; role == "slave" {
		problems = append(problems, errors.New("the Redis is a replica and takes no writes: point LEGWORK_REDIS_URL at the primary"))
	}
	return errors.Join(problems...)
}

func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	have, err := strconv.Atoi(parts[0])
	if err != nil || have != major || len(parts) < 2 {
		return err != nil || have > major
	}
	have, err = strconv.Atoi(parts[1])
	return err != nil || have >= minor
}
