# Everything a person needs: `make run` does the main job, `make test` checks everything. Both install what is missing.

CARGO ?= cargo

.PHONY: run build test test-slow lint bench fuzz corpus install uninstall deb static help

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

run: build ## Build nearfar and check this machine up
	target/release/nearfar checkup --html checkup.html

build:
	@tools/install-packages run
	$(CARGO) build --release --locked -p nearfar -p nearfar-lab-delay

# How long each step before the tests takes; the test runner prints it.
export NEARFAR_PHASES = $(CURDIR)/target/phases
PHASE = @tools/phase

# Each property is tried in so many cases, by `make test` and by `make test-slow`.
test: export PROPTEST_CASES ?= 64
test-slow: export PROPTEST_CASES ?= 2048

test: prepare-tests ## Check formatting, lints and documentation, then run every test but the slow ones
	NEARFAR_NETWORK_TESTS=1 CARGO="$(CARGO)" target/debug/nearfar-suite

test-slow: prepare-tests ## Run the tests that compare times or take long, and properties in many more cases; needs an idle machine
	@if command -v c++ >/dev/null; then tools/phase fuzz-targets $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target/fuzz; else echo "no C++ compiler: fuzz targets are not checked"; fi
	NEARFAR_NETWORK_TESTS=1 CARGO="$(CARGO)" target/debug/nearfar-suite --slow

# Guests need the built command and the delay plugin in the same folder, and kernels. Where one cannot be fetched this says so at
# once; whether the tests in such guests may be skipped is up to NEARFAR_REQUIRE (docs/testing.md).
.PHONY: prepare-tests
prepare-tests:
	@mkdir -p target
	@: >"$$NEARFAR_PHASES"
	@$(MAKE) --no-print-directory lint
	$(PHASE) build $(CARGO) build --workspace --lib --bins --tests --locked
	$(PHASE) kernels target/debug/nearfar lab kernels get --all || tools/require guests "cannot fetch the kernels of guests"
	$(PHASE) python tools/install-python target/python duckdb polars
	$(PHASE) prometheus tools/install-prometheus

SCRIPTS = tools/require tools/phase tools/install-packages tools/install-python tools/install-prometheus tools/install-files tools/fuzz-all tools/bench .ci/run \
	tools/build-* tools/check-crates tools/check-packages* tools/check-reproducible tools/check-static tools/check-upgrade* tools/install-cargo-tools tools/release \
	debian/nearfar.postinst debian/nearfar.postrm debian/nearfar.prerm

lint: ## Check formatting, scripts, lints and documentation
	@mkdir -p target
	$(PHASE) packages tools/install-packages test
	$(PHASE) formatting $(CARGO) fmt --all --check
	$(PHASE) clippy $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" tools/phase documentation $(CARGO) doc --workspace --no-deps --document-private-items --locked
	shellcheck $(SCRIPTS)
	shellcheck --shell=dash --exclude=SC2187 crates/lab/src/guest/*.sh

bench: build ## Print speed and memory against hwloc's lstopo, virtme-ng, allocators of tags, fio and tools for processes, each interleaved in one run
	@tools/install-packages bench
	tools/install-python target/vng virtme-ng
	$(CARGO) build --release --locked -p nearfar-sources --example generate_tree
	CARGO="$(CARGO)" tools/bench

MINUTES ?= 10
fuzz: ## Fuzz every parser for MINUTES (10) each; needs cargo-fuzz and a nightly toolchain
	tools/fuzz-all $(MINUTES)

corpus: build ## Compare the reading of public archives, XML files and texts with that of lstopo; fetches them to target/corpus
	tools/corpus

PREFIX ?= /usr/local
install: build ## Install the command, the delay plugin, unit, man pages, completions and docs below DESTDIR and PREFIX (/usr/local)
	tools/install-files install "$(PREFIX)" "$(DESTDIR)"

uninstall: ## Remove what `make install` put below DESTDIR and PREFIX, and nothing else
	tools/install-files uninstall "$(PREFIX)" "$(DESTDIR)"

ARCH ?=
deb: ## Build Debian packages in target/packages, also for ARCH=arm64 on amd64
	@tools/install-packages deb
	tools/build-packages $(ARCH)

static: ## Build a command that needs no library, for containers and initramfs, in target/*-linux-musl/release
	@tools/install-packages deb
	tools/build-release "$$(uname -m)-unknown-linux-musl"
