# What a person does with this repository. CI runs the same targets (.ci/run).

.DEFAULT_GOAL := help
SHELL := /bin/sh

# Further flags for go test, for example: make test TESTFLAGS='-run Deadline -v'
TESTFLAGS ?=
# What legwork version answers, for example: make build RELEASE=1.2.3
RELEASE ?=
# The packages that make test runs.
PACKAGES ?= ./...

.PHONY: help
help: ## list what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## show the main job from end to end: no settings, no Docker, nothing running
	go run ./cmd/legwork demo

.PHONY: test
test: compiler ## run every test under the race detector, on a private Postgres and Redis
	CGO_ENABLED=1 go test -race $(TESTFLAGS) $(PACKAGES)

.PHONY: faults
faults: ## kill, stop and cut off what is around real workers; half an hour (TESTFLAGS='-run AtMostOnce')
	LEGWORK_FAULTS=1 go test -count=1 -timeout 60m -v $(TESTFLAGS) ./internal/faults

.PHONY: conformance
conformance: ## drive the client through the official MCP conformance suite (needs npm)
	go run ./internal/conformance

.PHONY: interop
interop: ## talk to MCP servers that others wrote, as they publish them (needs npm)
	go run ./internal/interop

# Which figures, and how: for example make bench BENCHFLAGS='-rounds 3 call3 late'
BENCHFLAGS ?=

.PHONY: bench
bench: ## measure legwork beside others and beside the least that is possible; a quarter to half an hour on a machine that does nothing else
	go run ./internal/bench $(BENCHFLAGS)

.PHONY: lint
lint: ## check the form of the code: gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then \
		printf 'not in the form that gofmt gives, run "gofmt -w" on these:\n%s\n' "$$unformatted" >&2; \
		exit 1; \
	fi
	go vet ./...
	go tool staticcheck ./...

.PHONY: build
build: ## build the static binary bin/legwork
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.release=$(RELEASE)' -o bin/legwork ./cmd/legwork

.PHONY: migrate
migrate: ## bring the schema of LEGWORK_DATABASE_URL up to date
	go run ./cmd/legwork migrate up

.PHONY: up
up: ## run Postgres, Redis, a worker and the dashboard in Docker (needs .env, see .env.example)
	docker compose up --build --detach

.PHONY: down
down: ## stop what make up started; the data stays
	docker compose down

# The race detector needs cgo, and cgo a C compiler.
.PHONY: compiler
compiler:
	@cc=$$(go env CC) || exit 1; \
	if command -v "$${cc%% *}" >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then \
		echo "installing gcc and libc6-dev with apt-get: the race detector needs a C compiler"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get -q update </dev/null && apt-get -q install -y --no-install-recommends gcc libc6-dev </dev/null; \
	else \
		echo "the race detector needs a C compiler, and $$cc is not on PATH:" \
			'run "apt-get install gcc libc6-dev" on Debian or Ubuntu, "xcode-select --install" on macOS, "dnf install gcc" on Fedora' >&2; \
		exit 1; \
	fi
