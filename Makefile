# Everything a person needs: `make run` does the main job, `make test` checks everything. Both install what is missing.

CARGO ?= cargo

.PHONY: run build test lint bench fuzz install uninstall deb static help

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

run: build ## Build nearfar and check this machine up
	target/release/nearfar checkup --html checkup.html

build:
	@tools/install-packages run
	$(CARGO) build --release --locked

test: lint ## Check formatting, lints and documentation, then run every test
# Guests need the built command and the delay plugin in the same folder, and kernels. Where one cannot be fetched this says so at
# once; whether the tests in such guests may be skipped is up to NEARFAR_REQUIRE (docs/testing.md).
	$(CARGO) build --workspace --all-targets --locked
	@target/debug/nearfar lab kernels get --all || tools/require guests "cannot fetch the kernels of guests"
	@tools/install-python
	@tools/install-prometheus
	NEARFAR_NETWORK_TESTS=1 CARGO="$(CARGO)" target/debug/nearfar-suite

lint:
	@tools/install-packages test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked
	shellcheck tools/require tools/install-packages tools/install-python tools/install-prometheus tools/install-files tools/fuzz-all .ci/run
	shellcheck tools/build-* tools/check-crates tools/check-packages* tools/check-reproducible tools/check-static tools/check-upgrade* tools/install-cargo-tools tools/release debian/nearfar.postinst debian/nearfar.postrm debian/nearfar.prerm
	shellcheck --shell=dash --exclude=SC2187 crates/lab/src/guest/*.sh

bench: build ## Print speed and memory against hwloc's lstopo, virtme-ng, allocators of tags, fio and tools for processes, each interleaved in one run
	@tools/install-packages bench
	$(CARGO) build --release --locked -p nearfar-sources --example generate_tree
	$(CARGO) run --release --locked -p nearfar --example against_lstopo
	$(CARGO) run --release --locked -p nearfar --example against_vng
	$(CARGO) run --release --locked -p nearfar-tags --example against_peers
	$(CARGO) run --release --locked -p nearfar --example against_fio
	$(CARGO) run --release --locked -p nearfar --example against_process_tools

MINUTES ?= 10
fuzz: ## Fuzz every parser for MINUTES (10) each; needs cargo-fuzz and a nightly toolchain
	tools/fuzz-all $(MINUTES)

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
