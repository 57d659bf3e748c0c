# `make help` lists the targets.
#
# The first one that is called makes an environment in $(VENV); later ones use it again, until
# pyproject.toml, setup.py, the C sources or the constraints change.
#
#   make test TESTARGS="tests/sessions -k fork -x"
#   make test PYTHON=python3.12 VENV=.venv-3.12

PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
PLUGINS_VENV ?= .venv-plugins
RELEASE_VENV ?= .venv-release
SECURITY_VENV ?= .venv-security
HTML_VENV ?= .venv-html
TESTARGS ?=
BENCHARGS ?=
FUZZARGS ?=
# Most tests wait for processes that they start, so four workers pay off on two cores.
WORKERS ?= 4
# Tests of the names that are used of plugins which only this environment has.
OTHER_PLUGINS := tests/unit/compat/test_coverage_internals.py \
    $(patsubst %,tests/unit/compat/plugins/test_%.py,\
      allure bdd benchmark cov dependency depends rerunfailures snapshots steps timeout)
WHOLE_DEMO := tests/repo/test_demo.py::test_the_whole_demo_comes_out_as_expected

PY := "$(VENV)/bin/python"
STAMP := $(VENV)/installed
NATIVE := $(wildcard pytest_cudafork/observe/driver/native/*.c) \
          $(wildcard pytest_cudafork/observe/driver/native/*.h) \
          $(wildcard pytest_cudafork/observe/driver/native/*.inc)
# Errors only: pip warns about the settings of the machine, too.
PIP := $(PY) -m pip --quiet --quiet --disable-pip-version-check --no-input
# pip compiles what it installs on one core, after all else; this takes all cores. Some packages bring
# files that are for other Pythons, or templates, and do not compile. Paths are absolute, as they are
# kept: each import would have to set them right.
COMPILE := -W ignore -m compileall -qq -j 0
CHROMIUMS := chromium chromium-browser google-chrome google-chrome-stable
WORKFLOWS := $(wildcard .github/workflows/*.yml docs/examples/ci/github-*.yml) docs/examples/imports/fork-safety.yml
LINTED := pytest_cudafork sample_engine tests tools benchmarks demo docs conftest.py setup.py

MAKEFLAGS += --no-print-directory
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-quick test-fresh test-demo test-plugins test-html lint docs wheel-check release-check bench bench-gpu bench-against fuzz fuzz-sessions fuzz-native security changelog clean

# Another project's settings must not reach this one's environment or tests.
unexport PYTHONPATH PYTHONHOME PYTHONUNBUFFERED VIRTUAL_ENV PYTEST_ADDOPTS PYTEST_PLUGINS
# Tests start some thousand interpreters, which would compile the package again each time.
unexport PYTHONDONTWRITEBYTECODE
export PIP_ROOT_USER_ACTION := ignore

help:
	@echo "make demo         the plugin at work, no GPU needed"
	@echo "make test         the test suite; TESTARGS=... goes to pytest"
	@echo "make test-quick   unit tests and those of the repository that are not slow: the loop while editing"
	@echo "make test-fresh   the test suite, each session under test in a fresh interpreter"
	@echo "make test-demo    the demo comes out as expected"
	@echo "make test-plugins isolated tests next to pytest-cov, -timeout, -asyncio and others"
	@echo "make test-html    the page of a session in a headless Chromium, which is to be installed before"
	@echo "make lint         ruff, mypy, and the schemas of workflows and recipes for CI"
	@echo "make docs         the documentation as a site in build/site; a warning is an error"
	@echo "make wheel-check  build the wheel and try it in an empty environment"
	@echo "make release-check    what of a release can be checked here: same bytes, other platforms, metadata, SBOM"
	@echo "make bench        what it costs, against peers, in ratios; BENCHARGS=--list shows more: faults, soak, ..."
	@echo "make bench-gpu    the part of that which needs a GPU"
	@echo "make bench-against    the same, audit, isolation and capture_pair against BEFORE=REVISION"
	@echo "make fuzz         what reads others' data is given bytes, guided by coverage; FUZZARGS=... goes to it"
	@echo "make fuzz-native  the native libraries under sanitizers, called in random order by threads"
	@echo "make fuzz-sessions    sessions of random tests and options, some ended by a signal: nothing is lost"
	@echo "make security     static analysers over the package; what they find must be explained"
	@echo "make changelog    CHANGELOG.md from the fragments; VERSION=1.2.3"
	@echo "make clean        remove the environment and everything that was built"

demo: $(STAMP)
	@$(PY) demo/run.py

# What is about other plugins runs once, next to all of them, in test-plugins; the demo in test-demo.
# Sessions under test write no bytecode, and pytest's own is another form of it: in a fresh checkout
# each of them would compile the package again.
test: $(STAMP)
	@$(PY) -m compileall -q "$(CURDIR)/pytest_cudafork" "$(CURDIR)/sample_engine"
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal \
	    --ignore=tests/sessions/plugins --ignore=tests/browser --deselect=$(WHOLE_DEMO) $(TESTARGS)

# Hardly a test of these waits, and each worker collects all of them.
test-quick: $(STAMP)
	@$(PY) -m pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/repo $(TESTARGS)

# Sessions and scripts under test are forked from a server that has imported pytest (and torch);
# tests/support/interpreters.py tells which are not, and which plugin they lack. Here none is.
test-fresh: $(STAMP)
	@FRESH_INTERPRETERS="make test-fresh" $(MAKE) test

test-demo: $(STAMP)
	@$(PY) -m pytest $(WHOLE_DEMO) $(TESTARGS)

# An environment of its own: some of these plugins change every session that they are loaded in.
test-plugins: $(PLUGINS_VENV)/installed
	@"$(PLUGINS_VENV)/bin/python" -m compileall -q "$(CURDIR)/pytest_cudafork"
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "$(PLUGINS_VENV)/bin/python" -m pytest -p xdist.plugin \
	    -n $(WORKERS) --dist worksteal tests/sessions/plugins $(OTHER_PLUGINS) $(TESTARGS)

# An environment of its own, for the library that drives the browser, and not a part of .ci/run: the
# browser is one of this machine.
test-html:
	@$(foreach name,$(CHROMIUMS),command -v $(name) >/dev/null ||) { \
	  echo "no Chromium here ($(CHROMIUMS)): apt-get install chromium (Debian)," >&2; \
	  echo "snap install chromium (Ubuntu), dnf install chromium (Fedora)" >&2; exit 1; }
	@$(MAKE) $(HTML_VENV)/installed
	@"$(HTML_VENV)/bin/python" -m pytest tests/browser $(TESTARGS)

lint: $(STAMP)
	@$(PY) -m ruff check --quiet $(wildcard $(LINTED))
	@$(PY) -m ruff format --check --quiet $(wildcard $(LINTED))
	@$(PY) -m mypy --no-error-summary
	@for kind in github-workflows buildkite gitlab-ci; do \
	  $(PY) -m check_jsonschema --quiet --builtin-schema "vendor.$$kind" $$(case $$kind in \
	    github-workflows) echo $(WORKFLOWS);; \
	    buildkite) echo docs/examples/ci/buildkite.yml;; \
	    gitlab-ci) echo docs/examples/ci/gitlab.yml;; esac) || exit 1; done
	@$(PY) -m check_jsonschema --quiet --builtin-schema custom.github-workflows-require-timeout $(WORKFLOWS)
	@echo "lint: ruff, mypy and check-jsonschema found nothing"

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "docs: build/site/index.html"

wheel-check: $(STAMP)
	@$(PY) tools/check_wheel.py

release-check: $(RELEASE_VENV)/installed
	@"$(RELEASE_VENV)/bin/python" tools/check_release.py

# Ratios to peers, each part some times in turns: BENCHARGS="--only import run --save --against-last";
# --all and names of long parts run what takes hours. The peers' interpreter has a pytest that pytest-forked
# works with. The list of the parts needs no package: it takes an environment if there is one, and makes none.
LISTED := $(filter --list --help -h,$(BENCHARGS))
BENCH_PY := $(if $(LISTED),$(if $(wildcard $(VENV)/bin/python),$(PY),"$(PYTHON)"),$(PY))

bench: $(if $(LISTED),,$(STAMP) $(BENCH_VENV)/installed)
	@$(BENCH_PY) benchmarks/bench_all.py --peers "$(BENCH_VENV)/bin/python" $(BENCHARGS)

bench-gpu: $(if $(LISTED),,$(STAMP))
	@$(BENCH_PY) benchmarks/bench_all.py --gpu $(BENCHARGS)

# All benchmarks by which a change is judged, with the code of BEFORE and of this checkout in turns.
bench-against: $(STAMP)
	@$(PY) tools/compare_revisions.py $(BENCHARGS) "$(BEFORE)"

# Atheris has wheels for Python 3.11 and later, and is in no extra for that.
fuzz: $(VENV)/atheris
	@$(PY) -m tests.fuzz.run $(FUZZARGS)

fuzz-native: $(STAMP)
	@$(PY) -m tests.fuzz.native $(FUZZARGS)

fuzz-sessions: $(STAMP)
	@$(PY) -m tests.fuzz.sessions $(FUZZARGS)

# An environment of its own: nothing else needs the analysers.
security: $(SECURITY_VENV)/installed
	@"$(SECURITY_VENV)/bin/python" tools/check_security.py

changelog: $(STAMP)
	@test -n "$(VERSION)" || { echo "which version? make changelog VERSION=1.2.3" >&2; exit 1; }
	@$(PY) -m towncrier build --yes --version "$(VERSION)"

clean:
	@rm -rf "$(VENV)" "$(BENCH_VENV)" "$(PLUGINS_VENV)" "$(RELEASE_VENV)" "$(SECURITY_VENV)" "$(HTML_VENV)"
	@rm -rf build dist *.egg-info pytest_cudafork/observe/driver/native/lib
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find pytest_cudafork sample_engine tests tools benchmarks demo -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml setup.py constraints/dev.txt tools/check_python.py $(NATIVE)
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "no $(PYTHON) here: name a Python 3.10 or later, as in make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(VENV) with $$("$(PYTHON)" --version) (minutes the first time)"
	@echo "  torch and the tools of tests, linters and docs are installed; pip is silent unless it fails"
	@"$(PYTHON)" -m venv "$(VENV)"
	@$(PIP) install --no-compile -c constraints/dev.txt -e ".[test,lint,docs]"
	@$(PY) $(COMPILE) "$(abspath $(VENV))/lib" || :
	@touch "$(STAMP)"

$(VENV)/atheris: $(STAMP)
	@$(PIP) install "atheris==3.0.0"
	@touch "$@"

$(SECURITY_VENV)/installed: constraints/security.txt
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(SECURITY_VENV) (a minute the first time)"
	@"$(PYTHON)" -m venv "$(SECURITY_VENV)"
	@"$(SECURITY_VENV)/bin/python" -m pip --quiet --quiet --disable-pip-version-check --no-input \
	  install -r constraints/security.txt
	@touch "$@"

$(BENCH_VENV)/installed: pyproject.toml setup.py constraints/bench.txt $(NATIVE)
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(BENCH_VENV) (minutes the first time)"
	@"$(PYTHON)" -m venv "$(BENCH_VENV)"
	@"$(BENCH_VENV)/bin/python" -m pip --quiet --quiet --disable-pip-version-check --no-input \
	  install -c constraints/bench.txt -e . torch pytest-forked pytest-isolate pytest-isolated pytest-xdist
	@touch "$@"

# Plugins are compiled once as pytest wants them, with asserts that it has rewritten: sessions under test
# write no bytecode, and each of them would do it again. Packages' own tests, and what installs packages,
# are a third of all, and no session imports them.
$(PLUGINS_VENV)/installed: pyproject.toml setup.py constraints/dev.txt constraints/plugins.txt $(NATIVE)
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(PLUGINS_VENV)"
	@"$(PYTHON)" -m venv "$(PLUGINS_VENV)"
	@"$(PLUGINS_VENV)/bin/python" -m pip --quiet --quiet --disable-pip-version-check --no-input \
	  install --no-compile -c constraints/dev.txt -e . -r constraints/plugins.txt
	@"$(PLUGINS_VENV)/bin/python" $(COMPILE) -x 'site-packages/(.*/)?(tests|pip|setuptools|pkg_resources)/' \
	  "$(abspath $(PLUGINS_VENV))/lib" || :
	@cd "$(PLUGINS_VENV)" && bin/python -W ignore -m pytest -c /dev/null --rootdir=. --markers >/dev/null
	@touch "$@"

$(HTML_VENV)/installed: pyproject.toml setup.py constraints/dev.txt $(NATIVE)
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(HTML_VENV)"
	@"$(PYTHON)" -m venv "$(HTML_VENV)"
	@"$(HTML_VENV)/bin/python" -m pip --quiet --quiet --disable-pip-version-check --no-input \
	  install -c constraints/dev.txt -e ".[html]" hypothesis playwright
	@touch "$@"

$(RELEASE_VENV)/installed: pyproject.toml constraints/dev.txt
	@"$(PYTHON)" tools/check_python.py
	@echo "setting up $(RELEASE_VENV)"
	@"$(PYTHON)" -m venv "$(RELEASE_VENV)"
	@"$(RELEASE_VENV)/bin/python" -m pip --quiet --quiet --disable-pip-version-check --no-input \
	  install -c constraints/dev.txt -e ".[release]"
	@touch "$@"
