# The commands of the README, CONTRIBUTING.md and .ci/run. What they do stands in scripts/.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# What is installed.
BUILT ?= $(TARGET)/release
# mount(8) looks for its helpers in /sbin and nowhere else.
SBINDIR ?= /sbin
HELPERS := mount.fuse.pando umount.fuse.pando mount.fuseblk.pando umount.fuseblk.pando
# Arguments of `make bench`, for example: make bench BENCH_ARGS="--rows random --size 256M"
BENCH_ARGS ?=
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60

.PHONY: all build demo test test-full check fuzz bench bench-full install uninstall setup clean

all: build

build:
	$(CARGO) build --release --workspace --locked

demo:
	scripts/setup demo
	scripts/demo

test:
	scripts/setup test
	scripts/test

test-full:
	scripts/setup test
	scripts/test --full

check:
	scripts/setup build
	scripts/test --quick

fuzz:
	scripts/setup build
	fuzz/run -t $(FUZZ_SECONDS)

bench:
	scripts/setup bench
	$(CARGO) build --release --locked -p pando -p pando-bench
	$(CARGO) build --release --locked -p pando-fuse --example floor
	$(TARGET)/release/pando-bench $(BENCH_ARGS)

# Every row, three rounds of it, and one that is counted and not timed. It takes hours; broken off, it goes on where it was.
bench-full:
	scripts/setup bench
	$(CARGO) build --release --locked -p pando -p pando-bench
	$(CARGO) build --release --locked -p pando-fuse --example floor
	$(TARGET)/release/pando-bench --full --ablations --rounds 3 --resume $(TARGET)/bench-full.journal $(BENCH_ARGS)
	$(TARGET)/release/pando-bench --full --ablations --trace --resume $(TARGET)/bench-full.journal $(BENCH_ARGS)

setup:
	scripts/setup test bench

install:
	$(CARGO) build --release --locked -p pando
	install -D -m 755 $(BUILT)/pando $(DESTDIR)$(PREFIX)/bin/pando
	$(BUILT)/pando man $(DESTDIR)$(PREFIX)/share/man/man8
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BUILT)/pando completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pando
	$(BUILT)/pando completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pando
	$(BUILT)/pando completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pando.fish
	@# `mount -t fuse.pando` and /etc/fstab; without the right to write there everything else still works.
	install -d $(DESTDIR)$(SBINDIR) \
	    && (for helper in $(HELPERS); do ln -sfn $(PREFIX)/bin/pando $(DESTDIR)$(SBINDIR)/$$helper || exit; done) \
	    || echo "no mount helper: $(DESTDIR)$(SBINDIR) cannot be written, so mount -t fuse.pando will not work"

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/pando $(DESTDIR)$(PREFIX)/share/man/man8/pando.8 $(DESTDIR)$(PREFIX)/share/man/man8/pando-*.8 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pando $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pando \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pando.fish $(addprefix $(DESTDIR)$(SBINDIR)/,$(HELPERS))

clean:
	$(CARGO) clean
