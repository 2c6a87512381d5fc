# Thin: each target is a few commands that people can also type. docs/development.md explains them.
BUILD := build/release
JOBS := $(shell nproc)
# Most tests wait for a service that they started.
TEST_JOBS := $(shell expr 2 \* $(JOBS))
MINUTES := 5

.PHONY: demo build test test-sim fuzz lint parity bundle image bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     watch a small model being fine-tuned: installs, builds, trains, asks it questions"
	@echo "make test     build everything and run every test that this machine can run"
	@echo "make test-sim 10,000 simulations of a server, three nodes, networks and disks that break; a fleet's month"
	@echo "make fuzz     MINUTES=5 for each of the fuzzers: job files, rows, weights, templates, streams"
	@echo "make lint     clang with thread-safety analysis, and the rules of the tree"
	@echo "make parity   make the reference series anew and compare the engine with them"
	@echo "make bench    training on the CPU against a threshold; GPUs: docs/benchmarks"
	@echo "make bundle   a relocatable tarball of all binaries: how operators install a node"
	@echo "make image    a container image of it, as an OCI layout in dist/image (docs/kubernetes.md)"

demo:
	@echo "make demo: installs what is missing, builds (some minutes), then trains for about five"
	deploy/bootstrap --demo
	deploy/demo/run.sh

build:
	deploy/bootstrap
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)

test: build
	deploy/bootstrap --demo
	deploy/demo/make_model.sh
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(TEST_JOBS)

test-sim: build
	$(BUILD)/bin/sft-sim --seeds 10000 --jobs $(JOBS)
	SFT_WHOLE_MONTH=1 $(BUILD)/tests/server_month_test

fuzz:
	deploy/bootstrap --fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	nice -n 19 tests/fuzz/run.sh build/fuzz $(MINUTES)

lint:
	deploy/bootstrap --lint
	cmake --preset lint
	cmake --build build/lint -j $(JOBS)
	python3 tests/tidy/tidy.py

parity: build
	deploy/bootstrap --demo --parity
	tests/parity/run.sh $(BUILD)

bench: build
	deploy/bootstrap --demo
	deploy/demo/make_model.sh
	tests/bench/cpu_bench.py --bin $(BUILD)/bin

bundle: build
	deploy/bundle/make_bundle.sh $(BUILD)

image: bundle
	rm -rf dist/image
	deploy/image/make_image.py dist/sft-*-linux-x86_64.tar.xz dist/image

clean:
	rm -rf build/release build/dev build/lint build/alone build/fuzz build/engine dist
