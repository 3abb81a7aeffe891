# Every target works on all modules of go.work unless it says otherwise.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Every module of go.work, as directories and as package patterns.
MODULES = $$(go list -m -f '{{.Dir}}')
PACKAGES = $$(go list -m -f '{{.Dir}}/...')

# The tests that write, with -update, the generated parts of the documentation.
GENERATED := TestStoresTable|TestExitTable|TestTimings|TestAPIPage|TestCodesPage|TestAlerts|TestBoard

# A package that takes longer than this hangs.
TIMEOUT ?= 20m
FUZZTIME ?= 20s
TORTURE_TERMS ?= 100000
FLEET_ROUNDS ?= 50

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/tenure
	@tools/need go
	go build -o bin/tenure ./cmd/tenure

.PHONY: test
test: ## run all tests, the short form of the torture test included (needs Postgres)
	@tools/need go postgres faketime psycopg2 chromium promtool
	go vet ./bench/... # has little to test; at least it compiles
	go test -timeout $(TIMEOUT) $(PACKAGES)

.PHONY: race
race: ## run all tests with the race detector
	@tools/need go cc postgres faketime psycopg2 chromium promtool
	go test -race -timeout 40m $(PACKAGES)

.PHONY: torture
torture: ## run the long forms of the torture tests (TORTURE_TERMS=100000, FLEET_ROUNDS=50; TENURE_TORTURE_SEED repeats a run)
	@tools/need go postgres faketime
	cd cmd/tenure && TENURE_LONG=1 go test -run TestNoChildOutlivesItsTerm -count 1 -v -timeout 1h .
	cd conformance && TENURE_FLEET_SCALE=2 TENURE_FLEET_ROUNDS=$(FLEET_ROUNDS) TENURE_FLEET_BEDS=4 go test -run TestFleetLoss -parallel 4 -count 1 -v -timeout 2h .
	cd conformance && TENURE_TORTURE_TERMS=$(TORTURE_TERMS) TENURE_CASE_ROUNDS=200 go test -run 'TestTorture|TestKeeper' -count 1 -v -timeout 24h .

.PHONY: fence
fence: ## run the full forms of the fences' tests and of publishing
	@tools/need go postgres psycopg2
	cd conformance && TENURE_FENCE_HISTORIES=10000 TENURE_FENCE_PROCESS_HISTORIES=400 TENURE_PUBLISH_ROUNDS=1000 TENURE_PUBLISH_PROCESSES=100 \
		go test -run 'TestGuardHistories|TestPublish|TestFencingPage' -count 1 -v -timeout 4h .

.PHONY: bench
bench: ## measure and write docs/BENCHMARKS.md
	@tools/need go postgres
	cd bench && go run . -o ../docs/BENCHMARKS.md

.PHONY: fuzz
fuzz: ## run each fuzz test for FUZZTIME (20s)
	@tools/need go
	@grep -rl --include '*_test.go' '^func Fuzz' . | xargs -rn 1 dirname | sort -u | while read -r dir; do \
		grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | cut -d ' ' -f 2 | while read -r name; do \
			echo "$$dir $$name"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir"; \
		done; \
	done

.PHONY: lint
lint: bin/golangci-lint ## run golangci-lint, at the version that tools/go.mod pins
	@bad=0; for dir in $(MODULES); do echo "lint $$dir"; (cd "$$dir" && "$(CURDIR)/bin/golangci-lint" run ./...) || bad=1; done; exit $$bad

# The linter has a module outside the workspace, so that its many dependencies
# move none of ours.
bin/golangci-lint: tools/go.mod tools/go.sum
	@tools/need go
	GOWORK=off go -C tools build -o "$(CURDIR)/$@" github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: generate
generate: ## write the generated parts of the documentation
	go test ./cmd/tenure -run '$(GENERATED)' -count 1 -update

.PHONY: verify
verify: ## check go.mod files, formatting, vet, lint and generated documentation
	@tools/need go
	@bad=0; for dir in $(MODULES) tools; do echo "tidy $$dir"; go -C "$$dir" mod tidy -diff || bad=1; done; exit $$bad
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w these:"; echo "$$unformatted"; exit 1; }
	@for dir in $(MODULES); do echo "vet $$dir"; go -C "$$dir" vet ./...; done
	@$(MAKE) lint
	go test ./cmd/tenure -run '$(GENERATED)' -count 1
