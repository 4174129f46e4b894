# The same few commands for learners, instructors and CI. `make` alone lists them.
SUBMISSION ?= assessment/solutions/torch/assessment.py
NP ?= 2
# Finds, downloads or makes the data. Labs that need no data open without them.
DATA = for name in fashion_mnist cifar10; do .venv/bin/hvdlab data $$name --or-synthetic || true; done
.PHONY: help setup assess service test test-quick test-whole lab site notebooks bench gpu check

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s%s\n", $$1, $$2}' Makefile

setup: ## make .venv, install the pinned packages, build and cache Horovod
	@bash docker/setup.sh

assess: setup ## grade SUBMISSION=path (default: the reference solution) on NP=2 ranks and print the report
	@.venv/bin/hvdlab data cifar10 --or-synthetic
	@.venv/bin/hvdgrade run "$(SUBMISSION)" -np $(NP)

service: setup ## take and grade submissions on this machine, with pages for learners and staff, until Ctrl-C
	@.venv/bin/hvdlab data cifar10 --or-synthetic
	@exec .venv/bin/hvdgrade serve

# Four workers share the tests, as much of each is start-up and waiting, and each computes with one thread. A worker
# takes tests in their order, or all tests of a file, because the tests of a file share what they start. WHOLE names its
# longest files first. Whole gradings and two hosts run alone afterwards. Training scripts fork from a process that has
# imported the frameworks.
RANKS = mpi or notebook
SERVERS = slurm or browser
LAST = grading or multihost
WORKERS = -n 4 --dist worksteal
FORKED = OMP_NUM_THREADS=1 .venv/bin/python tests/helpers/fork_server/with_fork_servers.py
WHOLE = tests/notebooks notebooks/solutions tests/docker \
    tests/labs/test_labs.py tests/labs/test_pictures.py tests/labs/test_slides.py tests/labs/test_calculators.py \
    tests/labs/test_calculator_numbers.py tests/labs/test_cifar10.py tests/labs/test_training_scripts.py \
    tests/hvdgrade/batch/test_slurm.py tests/hvdgrade/batch/test_ended.py tests/hvdgrade/batch/test_platforms.py \
    tests/hvdgrade/worker \
    tests/hvdgrade/jupyter/test_server.py tests/hvdlab/check/test_scripts.py tests/hvdlab/gpu_report/test_command.py
test: setup ## run the test suite without test-whole and without the longest tests (CONTRIBUTING.md)
	@$(DATA)
	@LAB_QUICK=1 $(FORKED) .venv/bin/pytest tests $(WHOLE:%=--ignore %) $(WORKERS) -m "not thorough and not ($(LAST))"

test-whole: setup ## test set-up, notebooks, pictures, site, Slurm, batches, whole scripts and gradings
	@$(DATA)
	@failed=0; \
	LAB_QUICK=1 $(FORKED) .venv/bin/pytest $(WHOLE) -n 4 --dist loadfile --no-loadscope-reorder -m "not thorough and not ($(LAST))" || failed=1; \
	LAB_QUICK=1 .venv/bin/pytest $$(grep -rlE "mark\.(grading|multihost)" tests --include "test_*.py") -m "not thorough and ($(LAST))" || failed=1; \
	exit $$failed

# Only tests of one process, without the slow ones and without the folders whose tests start many programs.
QUICK = hvdgrade hvdlab measurements
test-quick: setup ## run the quick tests, which start no ranks and no servers, in less than two minutes
	@OMP_NUM_THREADS=1 .venv/bin/pytest $(QUICK:%=tests/%) $(WORKERS) --ignore tests/hvdlab/keras --ignore tests/hvdlab/test_arguments.py \
	    -m "not (thorough or slow or $(RANKS) or $(SERVERS) or $(LAST))"

lab: setup ## open JupyterLab on your copies of the notebooks in notebooks/work, with the real or synthetic data
	@$(DATA)
	@.venv/bin/hvdlab notebooks
	@.venv/bin/jupyter lab --notebook-dir=notebooks/work --LabApp.default_url=/lab/tree/00_start_here.ipynb $$([ $$(id -u) != 0 ] || echo --allow-root)

site: setup ## build the site of the course in runs/site: the labs with their results, guides, calculators, slides
	@$(DATA)
	@$(FORKED) .venv/bin/python notebooks/site/make_site.py

notebooks: setup ## make the notebooks from labs/NN_name.py
	@.venv/bin/python notebooks/build.py

bench: setup ## measure this machine next to peers: throughput, optimizers, ghost batch norm, exchange; JSON in runs/bench
	@mkdir -p runs/bench
	@for what in throughput optimizers normalization exchange; do \
	    .venv/bin/hvdlab bench $$what --json runs/bench/$$what.json || exit 1; done

gpu: setup ## check and measure the GPUs of this machine in at most 9 minutes; one report in runs/gpu
	@.venv/bin/hvdlab gpu --yes --out runs/gpu

check: setup ## lint, formatting, and whether the notebooks are what their sources give
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/python notebooks/build.py --check
