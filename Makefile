# The same few commands for learners, instructors and CI. `make` alone lists them.
SUBMISSION ?= assessment/solutions/torch/assessment.py
NP ?= 2
.PHONY: help setup assess test lab bench check

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s%s\n", $$1, $$2}' Makefile

setup: ## make .venv, install the pinned packages, build and cache Horovod
	@docker/setup.sh

assess: setup ## grade SUBMISSION=path (default: the reference solution) on NP=2 ranks and print the report
	@.venv/bin/hvdlab data cifar10 --or-synthetic
	@.venv/bin/hvdgrade run "$(SUBMISSION)" -np $(NP)

test: setup ## run the whole test suite
	@.venv/bin/pytest

lab: setup ## open JupyterLab on notebooks/
	@.venv/bin/jupyter lab --notebook-dir=notebooks

bench: setup ## images/s of Horovod and of torch DDP at 1 and 2 ranks, side by side
	@.venv/bin/hvdlab bench throughput

check: setup ## lint and formatting
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .
