# Four commands matter: `make demo`, `make quickstart`, `make check` and `make test`. All set up .venv first; `make help` lists the rest.
#
# .venv/choice   which Python and which jax build the environment holds; a change of either makes it anew
# .venv/base     stamp: what runs need is installed        .venv/dev   stamp: what tests need, on top
# uv does the work where it is on PATH, else python3 -m venv and pip. Nothing is fetched but from the package index.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo quickstart check test test-rest test-all test-slow test-crash test-stores test-slurm test-manifest test-diagnose test-stability test-contract test-parallel gpu wheels test-latest test-oracles test-wandb test-lm-eval confirm coverage plan-commands curves tuning bench docs clean FORCE

# Not given, both stay what .venv was made with; so `make setup ACCEL=cuda12` once is enough.
python := $(or $(PYTHON),$(word 1,$(shell cat .venv/choice 2>/dev/null)),python3)
accel := $(or $(ACCEL),$(word 2,$(shell cat .venv/choice 2>/dev/null)),cpu)
ifeq ($(filter $(accel),cpu cuda12 cuda13 tpu),)
$(error ACCEL=$(accel) is not a build of jax; use cpu, cuda12, cuda13 or tpu)
endif
jax_build := $(if $(filter-out cpu,$(accel)),'jax[$(accel)]')

# $(call make_venv,FOLDER) and $(call install,FOLDER,ARGUMENTS), by uv or by pip. A Python that can't do is refused in one line.
uv := $(shell command -v uv)
supported := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
check_python = $(python) -c '$(supported)' 2>/dev/null || \
	{ echo "PYTHON=$(python) is not there, or not Python 3.11 to 3.13; try make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
make_venv = $(check_python); rm -rf $(1); \
	$(if $(uv),uv venv -q --python "$$($(python) -c 'import sys; print(sys.executable)')" $(1),$(python) -m venv $(1))
pip = $(1)/bin/python -m pip --disable-pip-version-check install -q
need_pip = $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(1)/bin/python -m ensurepip >/dev/null
install = $(if $(uv),uv pip install -q --python $(1)/bin/python $(2),{ $(need_pip); } && $(pip) $(2))

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/base  ## install into .venv  [PYTHON=python3.12] [ACCEL=cpu|cuda12|cuda13|tpu]

demo: .venv/base  ## seconds: fit a law to a table that comes with the package, score its prediction, draw it
	.venv/bin/scalelab demo --out=runs/demo

quickstart: started := $(shell date +%s.%N)
quickstart: .venv/base  ## at most 5 minutes on 2 cores: train small models, fit a law, predict a larger run, check the prediction
	.venv/bin/python -m experiments.isoflop --quick --workdir=runs/quickstart --started=$(started)

check: .venv/dev  ## before each commit, under a minute: lint, types, walls between rooms, golden numbers of a step
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m pytest tests/test_walls.py tests/train/step/test_step.py -k "test_walls or golden"

# Tests marked `full` are dear and covered by others; those with the other marks have targets of their own.
others := not crash and not slow and not slurm
# A worker a core: each imports, compiles and trains for itself what tests share, so three on two cores take 694 CPU s
# where two take 608, and are no sooner done.
pytest = .venv/bin/python -m pytest --dist worksteal -n logical --maxprocesses=4

# mypy gets what the tests leave of the cores (`nice`): the time in which they wait for processes and for the last one.
test: .venv/dev  ## at most 6 minutes on 2 cores: lint, types, a test of every room and every promise of the README
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@echo "mypy in the background: what it says stands below the tests' lines"; \
	nice -n 19 .venv/bin/mypy > .venv/types 2>&1 & types=$$!; \
	$(pytest) -m 'not full and $(others)'; tests=$$?; \
	wait $$types; types=$$?; cat .venv/types; exit $$((tests ? tests : types))

test-rest: .venv/dev  ## what `make test` leaves out: the tests marked full
	$(pytest) -m 'full and $(others)'

test-all: test test-rest  ## what CI runs, half an hour on 2 cores: `make test`, then `make test-rest`

test-slow: .venv/dev  ## hours of CPU: the slow tests, more kills, packs and meshes; again: what is missing, failed or changed; writes checks/results/slow_tests.*
	.venv/bin/python -m checks.platforms.slow_tests --jobs=2

test-crash: .venv/dev  ## a quarter of an hour: kill runs at every moment; writes checks/results/crash.*
	SCALELAB_CRASH_RESULT=checks/results/crash.json .venv/bin/python -m pytest tests/crash -m 'crash or not crash'

test-stores: .venv/dev  ## a quarter of an hour: runs on object stores with faults, the crash suite on s3://; writes checks/results/stores.*
	.venv/bin/python -m checks.hostile.stores

test-slurm: .venv/dev  ## a quarter of an hour: sweeps on a Slurm of one node, which it starts and ends; skipped where Slurm is not installed
	.venv/bin/python -m pytest -m slurm tests/slurm -rs --durations=0

test-manifest: .venv/dev .venv-manifest/made  ## a minute: manifests against the schemas that SkyPilot and JobSet publish, in .venv-manifest
	.venv/bin/python -m pytest tests/sweep/executors/test_manifest.py

test-parallel: .venv/base  ## a quarter of an hour: every layout of a mesh against one device; writes checks/results/
	.venv/bin/python -m checks.numerics.parallelism --workdir=runs/parallelism
	.venv/bin/python -m checks.numerics.parallelism --experts=all

confirm: .venv/base  ## a quarter of an hour: the quickstart on fresh seeds and splits; writes experiments/results/
	.venv/bin/python -m checks.statistics.confirm --workdir=runs/confirm

coverage: .venv/base  ## an hour: how often 90 % intervals hold the truth and verdicts are right, in simulated studies; writes checks/results/
	.venv/bin/python -m checks.statistics.coverage
	.venv/bin/python -m checks.statistics.multiplier
	.venv/bin/python -m checks.statistics.decisions
	.venv/bin/python -m checks.statistics.ablation_rules
	.venv/bin/python -m checks.statistics.gaps

plan-commands: .venv/base  ## two minutes: the first lines of scalelab plan on thirteen questions, with CPU seconds and memory of each; writes checks/results/
	.venv/bin/python -m checks.speed.plan_commands

tuning: .venv/base  ## fifteen minutes: does scalelab tune find the best where it is known? writes checks/results/
	.venv/bin/python -m checks.statistics.tuning --workdir=runs/tuning
	.venv/bin/python -m checks.statistics.carrying

curves: .venv/base  ## three minutes: laws of curves fitted on three schedules predict the whole curves of three others; writes experiments/results/
	.venv/bin/python -m experiments.curves --workdir=runs/curves

test-diagnose: .venv/dev  ## half an hour of CPU: 68 planted faults and 34 healthy runs through scalelab diagnose, 13 and 9 with experts; writes checks/results/
	.venv/bin/python -m checks.diagnosis.diagnose
	.venv/bin/python -m checks.diagnosis.dead_experts

test-stability: .venv/dev  ## ten minutes: LRs at which wider runs diverge, forecast by scalelab plan --stability and then run; again: what is missing; writes checks/results/
	.venv/bin/python -m checks.diagnosis.stability --workdir=runs/stability

test-contract: .venv/dev  ## two hours of CPU: faults and odd healthy runs that the checks' authors did not write, through scalelab diagnose --live; again: what is missing; writes checks/results/
	.venv/bin/python -m checks.diagnosis.contract --half=open --workdir=runs/contract
	.venv/bin/python -m checks.diagnosis.contract --half=sealed --workdir=runs/contract

test-faults: .venv/dev  ## half an hour: each case of the fault table, from kills to forged files; again: what is missing; writes checks/results/
	.venv/bin/python -m checks.hostile.faults --jobs=2

test-strangers: .venv/dev  ## half an hour: hostile folders, buckets, tables and files x every command that reads one, beside canaries; again: what is missing; writes checks/results/
	.venv/bin/python -m checks.hostile.strangers --jobs=2

test-machines: .venv/dev  ## make test-all under three BLAS kernels and instruction sets: what is left of each tolerance? again: what is missing; writes checks/results/  [MACHINES="--runs=Zen,Haswell:AVX2"]
	.venv/bin/python -m checks.platforms.machines $(MACHINES)

# The newest versions of some packages want Python 3.12: one of these, else the python3 that there is.
newest_python = $(shell for each in python3.12 python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.1[23].*/bin/python); do \
	$$each -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$each && break; done)

test-latest: python = $(or $(PYTHON),$(newest_python),python3)
test-latest:  ## ten minutes: the newest jax and companions that pyproject.toml allows, in .venv-latest: trainings, every layout, refusals; writes checks/results/latest.*
	@echo "installing the newest versions that pyproject.toml allows into .venv-latest ($(python))"
	@$(call make_venv,.venv-latest)
	@$(call install,.venv-latest,-e . pytest pytest-xdist hypothesis)
	.venv-latest/bin/python -m checks.platforms.latest

test-wandb: .venv-wandb/made  ## half a minute: one W&B run a trial, packed, killed, resumed, without a key, by the real library offline, in .venv-wandb
	.venv-wandb/bin/python -m pytest tests/train/run/test_wandb_run.py

test-lm-eval: .venv-lm-eval/made  ## two minutes: an exported folder in transformers and lm_eval, in .venv-lm-eval: texts, ids, ends, scores; sampling's speed beside theirs
	.venv-lm-eval/bin/python -m pytest tests/hf/test_folder.py
	.venv-lm-eval/bin/python -m checks.speed.sampling --quick

test-oracles: .venv-oracles/made  ## every optimizer against other implementations, in .venv-oracles with torch (CPU); writes checks/results/oracles.*
	.venv-oracles/bin/python -m checks.numerics.oracles

# With PYTHON=… that has jax, nothing is installed: what it lacks comes from the wheels in .wheels (`make wheels`).
gpu_python := $(if $(filter command environment,$(origin PYTHON)),$(PYTHON),.venv/bin/python)
wheels = $(subst $() ,:,$(strip $(wildcard .wheels/*.whl)))
gpu: $(if $(filter .venv/%,$(gpu_python)),.venv/dev)  ## what to measure first on one GPU; again: what is missing; writes checks/results/  [GPU_SECONDS=540] [PYTHON=python3: that jax, no installation] [GPU=--only=…]
	PYTHONPATH="$(wheels)$${PYTHONPATH:+:$$PYTHONPATH}" $(gpu_python) -m checks.gpu --seconds=$(or $(GPU_SECONDS),540) $(GPU)

wheels:  ## for machines without a network whose own Python has jax: what it lacks, in .wheels (80 kB)
	$(python) -m pip download -q --no-deps --only-binary=:all: -d .wheels ml-collections==$(shell sed -n 's/^ml-collections==\([0-9.]*\).*/\1/p' requirements.txt)

docs: .venv/base  ## the documentation as a site that needs no network: site/index.html
	@$(call install,.venv,-c constraints.txt mkdocs)
	.venv/bin/python -m docs.generate
	.venv/bin/python -m docs.site

bench: .venv/base  ## measure the table of speed ratios on this machine
	.venv/bin/python -m checks.speed.benchmarks

clean:  ## remove environments and caches, but not runs/
	rm -rf .venv .venv-latest .venv-manifest .venv-oracles .venv-wandb .venv-lm-eval site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Checked each time, written only when it changes: the stamps below it are then out of date.
.venv/choice: FORCE
	@test -x .venv/bin/python && test "$$(cat $@ 2>/dev/null)" = "$(python) $(accel)" || \
	{ $(call make_venv,.venv) && echo "$(python) $(accel)" > $@; }

.venv/base: .venv/choice requirements.txt constraints.txt pyproject.toml
	@echo "installing requirements.txt into .venv (jax for $(accel))"
	@$(call install,.venv,-c constraints.txt -r requirements.txt $(jax_build))
	@$(call install,.venv,--no-deps -e .)
	@touch $@

.venv/dev: .venv/base requirements-dev.txt
	@echo "installing requirements-dev.txt into .venv"
	@$(call install,.venv,-c constraints.txt -r requirements-dev.txt)
	@touch $@

.venv-wandb/made: requirements.txt requirements-dev.txt constraints.txt pyproject.toml
	@echo "installing requirements-dev.txt and the extra wandb into .venv-wandb"
	@$(call make_venv,.venv-wandb)
	@$(call install,.venv-wandb,-c constraints.txt -r requirements-dev.txt -e '.[wandb]')
	@touch $@

.venv-lm-eval/made: requirements.txt requirements-dev.txt requirements-oracles.txt constraints.txt pyproject.toml
	@echo "installing requirements-dev.txt, torch and the extra lm-eval into .venv-lm-eval"
	@$(call make_venv,.venv-lm-eval)
	@grep '^torch==' requirements-oracles.txt > .venv-lm-eval/torch.txt
	@$(call install,.venv-lm-eval,-c constraints.txt -r requirements-dev.txt -r .venv-lm-eval/torch.txt -e '.[lm-eval]')
	@touch $@

.venv-manifest/made: requirements-manifest.txt
	@echo "installing requirements-manifest.txt into .venv-manifest"
	@$(call make_venv,.venv-manifest)
	@$(call install,.venv-manifest,-r requirements-manifest.txt)
	@touch $@

# By pip even where there is uv: only pip looks for torch's CPU build where it is told to (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).
.venv-oracles/made: requirements.txt constraints.txt requirements-oracles.txt
	@echo "installing requirements-oracles.txt into .venv-oracles"
	@$(call make_venv,.venv-oracles)
	@$(call need_pip,.venv-oracles)
	@$(call pip,.venv-oracles) -c constraints.txt -r requirements.txt -r requirements-oracles.txt
	@$(call pip,.venv-oracles) --no-deps -e .
	@touch $@
