# Everything a developer runs, one target each. Bare `make` explains them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null)

# python3 when it is new enough, else the newest that is; `make PYTHON=... setup` overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

ROUNDS ?= 200
MUTATIONS ?= 100000
SEED ?=
BENCH ?=
TESTS ?=
PURE ?=
LONG ?=
PYTHONS ?= python3.12 python3.13 python3.14 $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[2-9].*/bin/python)
MARKS = $(if $(LONG),-m "not interop")
QUICK = -m "not slow and not interop and not long" --ignore=tests/spark --ignore=tests/bench --ignore=tests/interop/test_lake_from_spark.py --hypothesis-profile=quick --durations=5 --durations-min=2
KAFKA := .cache/kafka-4.3.1/.ready
DELTA := .cache/delta-4.4.0/.ready
SPARK43 := .cache/pyspark-4.3/.ready
SPARK43_TESTS := $(addprefix tests/spark/test_,source_filters.py source_columns.py source_live.py source_golden.py stream_queries.py sink_stream.py)

PARTS := $(addprefix $(VENV)/.,core dev docs spark bench wheel)
KERNEL_SOURCES := $(filter-out %.c,$(wildcard src/stratalog/kernel/*.py src/stratalog/kernel/*.pxd src/stratalog/kernel/*.h))

.PHONY: help setup demo check quick-tests test pythons lint style types quick-types imports tidy bench bench-spark bench-broker interop spark-next crash crash-broker explore crash-spark crash-pipelines fuzz docs wheel lock clean

help: ## this list
	@echo "Stratalog: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.built $(VENV)/.dev ## an environment in .venv with the compiled kernel; Spark and the benchmarks' peers follow with the targets that need them

demo: setup $(VENV)/.spark ## a million events, a crash and a recovery, a segment's life, a Kafka client, and Spark on top, in under two minutes
	@tests/interop/need_jdk.sh
	@$(PY) -m demo

check: setup ## before each commit, in under two minutes: style, types, import rules, unused and duplicate code, and the tests that need no Spark, no JDK and no patience
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target style quick-types imports tidy
	@$(MAKE) --no-print-directory quick-tests

# A whole run needs every part; some tests, picked by their paths, only those that these name.
TEST_PARTS = $(addprefix $(VENV)/.,$(if $(filter tests/%,$(TESTS)),$(foreach part,spark bench,$(findstring $(part),$(TESTS))),spark bench))
test: setup $(TEST_PARTS) ## every test that needs no Kafka broker (Spark wants a JDK; kcat is used if it is there); TESTS="tests/log -k roll" picks some, PURE=1 uses the interpreted kernel, LONG=1 adds the long ones
	@$(if $(TESTS),,tests/interop/need_jdk.sh kcat || true)
	@$(if $(PURE),STRATALOG_PURE=1) $(PY) -m pytest -q -n 2 --dist worksteal $(MARKS) $(or $(TESTS),--ignore=tests/spark)
	@$(if $(TESTS),,tests/interop/need_jdk.sh && $(PY) -m pytest -q $(MARKS) tests/spark)

# Each has an environment of its own; the compiled kernels lie side by side, their names tell them apart.
pythons: ## the quick tests on every other Python from 3.12 on that is at hand; PYTHONS=/path/to/python3.13 names one, TESTS=... picks some
	@for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null) || continue; \
		$(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=$$python quick-tests; \
		found="$${found:-} $$version"; \
	done; \
	echo "pythons:$${found:- none at hand}"

quick-tests: setup
	@$(PY) -m pytest -q -n 2 --dist worksteal $(QUICK) $(TESTS)

lint: style types imports tidy ## style, types, import rules, unused and duplicate code

style: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: setup $(VENV)/.spark $(VENV)/.bench
	@$(VENV)/bin/mypy src tests bench demo

# Where Spark and the peers are not installed, the files that import them wait for `make types`.
NEED_PARTS = $(shell grep -rlE '^\s*(import|from) (pyspark|py4j|pyiceberg|duckdb|stratalog\.spark|diskcache|lmdb|rocksdict)\b' --include='*.py' src tests bench demo)
PARTS_HERE = $(and $(wildcard $(VENV)/.spark),$(wildcard $(VENV)/.bench))
quick-types: setup
	@$(if $(PARTS_HERE),,echo "types: all but $(words $(NEED_PARTS)) files that need Spark or the benchmarks' peers; make types has them too")
	@$(VENV)/bin/mypy src tests bench demo $(if $(PARTS_HERE),,--follow-imports=silent --exclude '^($(subst $() $(),|,$(NEED_PARTS)))$$')

imports: setup
	@$(VENV)/bin/lint-imports --no-cache

# pyproject.toml says what counts, and what a framework calls.
tidy: setup
	@$(VENV)/bin/vulture
	@$(VENV)/bin/pylint src/stratalog

bench: setup $(VENV)/.bench ## medians and ratios against other embedded stores; BENCH="append scan" picks some
	@$(PY) -m bench $(BENCH)

bench-spark: setup $(VENV)/.spark $(KAFKA) ## medians and ratios against Spark's Kafka connector and a real broker (a JDK, Maven once, half an hour)
	@tests/interop/need_jdk.sh maven
	@$(PY) -m bench.spark $(BENCH)

bench-broker: setup $(VENV)/.bench $(KAFKA) ## the broker beside a warm Kafka 4.3.1 under the same loads (a JDK, Maven once, a C compiler, a quarter of an hour); BENCH="produce fsync" picks
	@tests/interop/need_jdk.sh maven
	@$(PY) -m bench.broker $(BENCH)

interop: setup $(VENV)/.spark $(KAFKA) $(DELTA) ## with a real Kafka 4.3.1 broker and its dump tool, clients in other languages, and Delta Lake's connector for Spark (needs a JDK 17 or later, Go and Node, and Maven once); LONG=1 runs the clients on Kafka too
	@tests/interop/need_jdk.sh npm go || tests/interop/need_jdk.sh
	@$(PY) -m pytest -q -m $(if $(LONG),interop,"interop and not long") $(or $(TESTS),tests/interop)

spark-next: setup $(VENV)/.spark $(SPARK43) ## the Spark source, streams and sink on PySpark 4.3
	@tests/interop/need_jdk.sh
	@PYTHONPATH=$(abspath $(dir $(SPARK43))) $(PY) -m pytest -q $(or $(TESTS),$(SPARK43_TESTS))

crash-spark: setup $(VENV)/.spark ## SIGKILL drivers, executors and Python workers under a streaming write, ROUNDS=50 times; SEED=... replays
	@tests/interop/need_jdk.sh
	@$(PY) tests/spark/crash_spark.py --rounds $(if $(filter file,$(origin ROUNDS)),50,$(ROUNDS)) $(if $(SEED),--seed $(SEED))

crash-pipelines: setup $(VENV)/.spark ## SIGKILL an ingest and a replay on Spark, KILLS=20 times
	@tests/interop/need_jdk.sh
	@$(PY) -m tests.spark.crash_pipelines $(or $(KILLS),20)

explore: setup ## two operations interleaved at every filesystem call and lock, all pairs; SCHEDULE="append@7 x move" replays one, EVERY=5 thins them out, PART=1/2 takes half
	@EVERY=$(or $(EVERY),1) PART=$(or $(PART),1/1) $(PY) -m tests.explore.explorer '$(SCHEDULE)'

crash: setup ## SIGKILL at random moments, ROUNDS=200 times, and the interleavings of `make explore`; SEED=... replays a run
	@EVERY=$(or $(EVERY),1) $(PY) -m tests.explore.explorer
	@$(PY) tests/crash/kill_campaign.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

crash-broker: setup ## SIGKILL, pause and restart a broker under producers and consumers, ROUNDS=200 times; SEED=... replays
	@$(PY) tests/broker/crash_broker.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

fuzz: setup ## hostile bytes against the compiled kernel under AddressSanitizer, MUTATIONS=100000 of them; SEED=... replays
	@PYTHON=$(abspath $(PY)) tests/kernel/asan.sh $(MUTATIONS) $(SEED)

docs: setup $(VENV)/.docs $(VENV)/.spark ## build the site into build/docs, strictly and without network; links, examples and the walk through the code are checked
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -c docs . build/docs
	@$(PY) -m pytest -q tests/test_docs.py
	@echo "docs: open build/docs/index.html"

wheel: setup $(VENV)/.wheel ## an sdist, and a manylinux wheel for this Python, in dist/
	@rm -rf dist build/wheel
	@$(VENV)/bin/uv build --quiet --no-build-isolation --python $(PY) --sdist --out-dir dist .
	@$(VENV)/bin/uv build --quiet --no-build-isolation --python $(PY) --wheel --out-dir build/wheel dist/*.tar.gz
	@PATH="$(abspath $(VENV)/bin):$$PATH" $(VENV)/bin/auditwheel repair --wheel-dir dist build/wheel/*.whl
	@ls dist

lock: setup ## compile requirements/*.txt anew, with hashes; LOCKED=1 keeps the versions that are there
	@compile() { $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' "$$@"; }; \
	all=$$(mktemp); trap 'rm -f "$$all"' EXIT; \
	$(if $(LOCKED),cat $(PARTS:$(VENV)/.%=requirements/%.txt) >"$$all";) \
	compile $(if $(LOCKED),,--upgrade) pyproject.toml requirements/build.in --extra dev --extra dev-docs --extra dev-spark --extra dev-bench --extra dev-wheel --output-file "$$all"; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --output-file requirements/core.txt; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --extra dev --output-file requirements/dev.txt; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --extra dev-docs --output-file requirements/docs.txt; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --extra dev-spark --output-file requirements/spark.txt; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --extra dev-bench --output-file requirements/bench.txt; \
	compile pyproject.toml requirements/build.in --constraint "$$all" --extra dev-wheel --output-file requirements/wheel.txt; \
	compile $(if $(LOCKED),,--upgrade) requirements/spark43.in --output-file requirements/spark43.txt

clean: ## remove the environment, caches and everything built (.cache with the jars stays)
	@rm -rf $(VENV) .venv-3.* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -f src/stratalog/kernel/*.so src/stratalog/kernel/*.c
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The steps behind `setup`, and the parts that only some targets need: each leaves a stamp, so nothing is installed twice.

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Stratalog needs Python 3.11 or later and found none (python3.11 to python3.13); make PYTHON=/path/to/python setup" >&2; exit 1; }
	@echo "setup: $(VENV) with $$($(PYTHON) -V)"
	@$(if $(UV),$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(PARTS): $(VENV)/.%: requirements/%.txt | $(VENV)/.created
	@echo "setup: installing requirements/$*.txt"
	@$(if $(UV),VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --compile-bytecode --require-hashes -r $<,$(PY) -m pip install --quiet --require-hashes -r $<)
	@touch $@

$(VENV)/.built: $(VENV)/.core pyproject.toml setup.py $(KERNEL_SOURCES)
	@command -v $(firstword $(CC)) >/dev/null || command -v gcc >/dev/null || \
		echo "setup: no C compiler found, so the interpreted kernel is used: right, but many times slower"
	@echo "setup: building the kernel"
	@$(if $(UV),VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-build-isolation --no-deps --reinstall -e .,$(PY) -m pip install --quiet --no-build-isolation --no-deps -e .)
	@$(PY) -m compileall -q src
	@$(PY) -c 'from stratalog import kernel; print("setup: done,", "compiled kernel" if kernel.compiled else "interpreted kernel (slow)")'
	@touch $@

# The next PySpark lies beside the environment, and in front of it on the path of those tests.

$(SPARK43): requirements/spark43.txt | setup
	@rm -rf $(@D)
	@$(if $(UV),$(UV) pip install --quiet --python $(PY) --target $(@D) --no-deps --require-hashes -r $<,$(PY) -m pip install --quiet --target $(@D) --no-deps --require-hashes -r $<)
	@touch $@

# Kafka's jars, and those of Delta Lake's connector, come from Maven Central once and stay in .cache.

$(KAFKA): tests/interop/pom.xml | setup
	@tests/interop/need_jdk.sh maven
	@$(PY) tests/interop/kafka.py

$(DELTA): tests/interop/delta.pom.xml | setup
	@tests/interop/need_jdk.sh maven
	@$(PY) -m tests.interop.delta
