# make lab    opens the first lesson               make test   runs everything that is tested
# make env    makes or updates .venv/              make check  lint, types and quick tests, under two minutes
# make bench  measures the speeds we promise       make notebooks  writes the outputs stored in notebooks/
# make soak   a thousand runs, one in twenty with a fault, and what is left behind
# make gpu    tries what is promised about GPUs: ten minutes at most, needs a torch that sees one and no .venv/;
#             OUT=folder is where the report goes, else tests/bench/results
# make soak-fresh  300 cold starts each of compare, record and a notebook, on a busy machine
#
# TORCH=cpu|cuda|cuda12|system chooses torch, PYTHON=python3.12 the Python; both only when .venv/ is made.

PYTHON ?= python3
TORCH ?= auto
ENV := .venv/bin

SWITCH := $(if $(filter command environment,$(firstword $(origin PYTHON))),--switch)
comma := ,
# What opens the lessons needs less than what tests them; extras that are there stay.
EXTRAS := lab$(if $(filter-out lab,$(or $(MAKECMDGOALS),env)),$(comma)test$(comma)site)
EXTRAS := $(EXTRAS)$(if $(filter 1,$(ZEROLAB_REQUIRE_ALL)),$(comma)deepspeed)

.PHONY: env lab check test bench gpu soak soak-fresh notebooks site lint

env:
	@[ "$$("$(PYTHON)" -c 'print(6 * 7)' 2>/dev/null)" = 42 ] || { echo "make env: '$(PYTHON)' is not a Python that starts; zerolab needs 3.11 to 3.13: apt install python3 python3-venv, or choose one: make env PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" tools/make_env.py --torch "$(TORCH)" --extras "$(EXTRAS)" $(SWITCH)

lab: env
	@$(ENV)/zerolab lab

lint: env
	$(ENV)/ruff check .
	$(ENV)/ruff format --check .
	$(ENV)/mypy
	$(ENV)/python tools/lint_javascript.py

# Two files of tests at a time, the longest first, so that neither core waits for the other at the end. Three keep two
# cores no busier: they only wait for each other, and what waits for a browser comes too late.
TWO_AT_A_TIME := -n 2 --dist loadfile --no-loadscope-reorder

# Where an image sets this, every rank, kernel and command would compile the package anew.
check test: export PYTHONDONTWRITEBYTECODE =

check: lint
	$(ENV)/pytest $(TWO_AT_A_TIME) --quick

test: lint
	$(ENV)/pytest $(TWO_AT_A_TIME)

bench: env
	$(ENV)/python tests/bench/run.py

# No `env` before it: it runs with the torch that is there. A Python that is named goes before .venv/.
gpu:
	@"$(if $(SWITCH),$(PYTHON),$(or $(wildcard $(ENV)/python),$(PYTHON)))" tests/gpu/battery.py$(if $(OUT), --out "$(OUT)")

soak: env
	$(ENV)/python tests/soak/soak.py

soak-fresh: env
	$(ENV)/python tests/soak/fresh.py

notebooks: env
	$(ENV)/python tools/notebooks.py

site: env
	$(ENV)/python tools/make_site.py
