# One command per task. `make demo` and `make test` do all their own set-up on a fresh machine.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
NODE_INSTALLED := node_modules/.installed
REHEARSAL_INSTALLED := .venv-rehearsal/.installed
LAMBDA_PYTHON := 3.13
SPARKS_INSTALLED := $(foreach spark,3.5 4.0 4.1 4.3,.venv-spark-$(spark)/.installed)

# As on Glue 5.1 and on Glue 6.0.
SPARK_PYTHON_3.5 := 3.11
SPARK_PYTHON_4.1 := 3.13

# Node comes from the environment's own wheel; nothing of the CDK toolchain reports home.
CDK_ENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" CDK_DISABLE_CLI_TELEMETRY=true JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION=1

.PHONY: help setup demo test test-compiled check lint types imports generated synth openapi synchronous reference docs costs protocol words bench bench-peers bench-spark fuzz conformance rehearse nightly up lock dist clean

help: ## show this list
	@grep -hE '^[a-z][a-z0-9.%-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(INSTALLED) ## make .venv from the lock file

$(INSTALLED): requirements.lock pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $@

.venv-spark-%/.installed: requirements-spark-%.lock pyproject.toml scripts/setup
	@scripts/setup $(@D) $< $(SPARK_PYTHON_$*)
	@touch $@

# Functions run with its Python, so it is that of AWS Lambda.
$(REHEARSAL_INSTALLED): requirements-rehearsal.lock scripts/setup
	@scripts/setup $(@D) $< $(LAMBDA_PYTHON)
	@touch $@

$(NODE_INSTALLED): package-lock.json $(INSTALLED)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm ci --no-audit --no-fund --loglevel=error
	@touch $@

demo: $(INSTALLED) ## the main job: flights through API, queues, segment stores, S3 and Spark, on this machine
	@$(PYTHON) -m demo

up: $(INSTALLED) ## start the local stack and keep it running
	@$(PYTHON) -m headrace.local

test: $(INSTALLED) $(NODE_INSTALLED) ## run the tests
	@$(CDK_ENV) $(PYTHON) -m pytest -n 4 --dist loadgroup --max-worker-restart=0 -m "not nightly" --durations=25

# Without the current directory on the path, also of child processes: its library is not compiled.
test-compiled: $(INSTALLED) ## compile the hot path in build/compiled, and run the tests of store and writer on it
	@if ! command -v gcc >/dev/null || ! test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; \
	then echo "test-compiled: not run, gcc or Python.h is missing (Debian: apt-get install gcc python3-dev)"; exit 0; fi; \
	$(PYTHON) scripts/compile_modules.py build/compiled && \
	PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/build/compiled:$(CURDIR)" $(PYTHON) -m pytest -n 4 --dist loadgroup \
		--max-worker-restart=0 -m "not nightly" -p no:cacheprovider tests/segmentstore tests/replication tests/codec \
		tests/client/writing $(wildcard tests/client/test_interrupted_*.py) tests/client/test_writers_left_open.py \
		tests/client/test_clients_after_forks.py tests/client/test_wrong_arguments.py tests/client/test_real_cluster.py \
		tests/simulation/test_runs.py tests/simulation/regressions

rehearse: $(INSTALLED) $(NODE_INSTALLED) $(REHEARSAL_INSTALLED) ## deploy the CDK app into an emulator with IAM, use it, change it, destroy it
	@$(PYTHON) -m rehearsal

test-spark-%: .venv-spark-%/.installed ## run all of the connector's tests on a Spark, in an environment of its own: 3.5, 4.0, 4.1, 4.3
	@-.venv-spark-$*/bin/python scripts/fetch_iceberg.py $*
	@PATH="$$PATH:$(CURDIR)/build/setup-tools/bin" .venv-spark-$*/bin/python -m pytest tests/spark

check: lint types imports generated docs synth ## everything that CI checks except the tests

lint: $(INSTALLED) ## style and banned calls
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: $(INSTALLED) ## mypy strict for the library
	@$(PYTHON) -m mypy

imports: $(INSTALLED) ## who may import whom
	@$(VENV)/bin/lint-imports

generated: $(INSTALLED) ## are the client's synchronous classes, the page of the command line and Grafana's dashboard current
	@$(PYTHON) scripts/generate_synchronous_client.py --check
	@$(PYTHON) scripts/generate_cli_reference.py --check
	@PYTHONPATH=. $(PYTHON) scripts/generate_grafana_dashboard.py --check

synth: $(NODE_INSTALLED) ## synthesize the CDK app with cdk-nag, without docker and without an account
	@$(CDK_ENV) node_modules/.bin/cdk synth --quiet -c nag=true

openapi: $(INSTALLED) ## generate docs/api/openapi.json
	@$(PYTHON) -m functions.openapi

synchronous: $(INSTALLED) ## generate the client's synchronous classes from the asynchronous ones
	@$(PYTHON) scripts/generate_synchronous_client.py

reference: $(INSTALLED) ## generate the tables of docs/using/cli.md from the commands, and the dashboard of Grafana
	@$(PYTHON) scripts/generate_cli_reference.py
	@PYTHONPATH=. $(PYTHON) scripts/generate_grafana_dashboard.py

docs: $(INSTALLED) ## build the site, with the reference of the Python API, into build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

costs: $(INSTALLED) ## measure the costs of calls and update the tables of docs/operating/costs.md
	@PYTHONPATH=. $(PYTHON) tests/support/costs.py

words: $(INSTALLED) ## list retired words with the standard terms, and count per folder what is left
	@$(PYTHON) tests/support/retired_words.py

bench: $(INSTALLED) ## measure, together with the raw limits of this disk; writes build/bench/results.json
	@$(PYTHON) -m benchmarks

bench-peers: $(INSTALLED) ## measure next to Apache Kafka in the same run (needs Java 17 and Maven); writes build/bench/peers.json
	@$(VENV)/bin/uv pip install --quiet --target build/bench-peers/packages --require-hashes -r benchmarks/requirements-peers.txt
	@mvn --quiet --batch-mode --file benchmarks/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(CURDIR)/build/bench-peers/jars
	@PYTHONPATH=build/bench-peers/packages $(PYTHON) -m benchmarks.peers $(PEERS_OPTIONS)

bench-spark: $(INSTALLED) ## measure what an event costs in Spark, next to Parquet; writes build/bench/spark.json
	@$(PYTHON) -m benchmarks.spark

fuzz: $(INSTALLED) ## search for bytes that break a decoder, kill stores, cut power, random programs, soak: about ten minutes
	@set -e; for decoder in $$(ls fuzz/corpus); do $(PYTHON) -m fuzz $$decoder --seconds 20; done
	@$(PYTHON) -m fuzz kill-nine --minutes 2
	@$(PYTHON) -m fuzz power-cuts --minutes 2
	@$(PYTHON) -m fuzz segments --seeds 1-300
	@$(PYTHON) -m fuzz lost-volumes --seeds 1-100
	@$(PYTHON) -m fuzz reads --seeds 1-30
	@$(PYTHON) -m fuzz tables --seeds 1-50
	@$(PYTHON) -m fuzz clients --seeds 1-100
	@$(PYTHON) -m fuzz controller --seeds 1-150
	@$(PYTHON) -m fuzz soak --minutes 1

conformance: $(INSTALLED) ## run Pravega's own clients (Java: needs JDK 17 and Maven) against a stack, and update their table
	@PYTHONPATH=. $(PYTHON) scripts/run_conformance.py; outcome=$$?; $(PYTHON) scripts/generate_conformance_table.py; exit $$outcome

nightly: $(INSTALLED) $(NODE_INSTALLED) $(REHEARSAL_INSTALLED) $(SPARKS_INSTALLED) ## simulate logs and whole stores, random programs, lose real stores, kill Spark, other Sparks, Pravega's clients, a deployment
	@$(PYTHON) scripts/run_nightly.py

protocol: $(INSTALLED) ## generate the bridge's messages from its protocol file
	@$(PYTHON) scripts/generate_controller_protocol

lock: ## resolve the dependencies again
	@$(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
		--all-extras --group test --group compiler --group check --group infra --group demo --group fuzz --group mutants --group docs pyproject.toml \
		--custom-compile-command "make lock" -o requirements.lock
	@for spark in 3.5 4.0 4.1 4.3; do $(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --upgrade \
		--quiet --extra local --extra spark --extra aws-auth --group spark-$${spark/./-} pyproject.toml \
		--custom-compile-command "make lock" -o requirements-spark-$$spark.lock || exit; done
	@$(VENV)/bin/uv pip compile --universal --python-version $(LAMBDA_PYTHON) --generate-hashes --upgrade --quiet \
		--group pyproject.toml:rehearsal --custom-compile-command "make lock" -o requirements-rehearsal.lock

dist: $(NODE_INSTALLED) ## build the wheel in dist/
	@rm -rf dist && $(VENV)/bin/uv build --wheel --quiet --out-dir dist

clean: ## remove what builds leave behind; keeps .venv
	@rm -rf build dist cdk.out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
