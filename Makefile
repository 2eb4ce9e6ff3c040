# Everything a checkout needs. `make demo` runs the program, `make test` the tests.
# Each environment is made once; delete .venv to make it anew.

PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
CLEAN_BIN := $(abspath $(VENV)-wheel)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml README.md LICENSE \
	$(shell find cli dflash_cache -type f -not -path '*/__pycache__/*')

.PHONY: help demo check-demo test torture lint types imports docs site reference wheel ci clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make demo        set up, then extract, train and evaluate the bundled demo on the CPU"
	@echo "make test        set up, then run the tests but for those of the docs"
	@echo "make torture     the full fault trials: long"
	@echo "make lint        ruff, rules and format"
	@echo "make types       mypy, strict"
	@echo "make imports     the import contracts, on a wheel"
	@echo "make docs        build the site, run the documentation's snippets and commands"
	@echo "make site        build the documentation as a site in build/site, warnings are errors"
	@echo "make reference   write the pages of commands and of the Python API again"
	@echo "make wheel       build the wheel and try it in a clean environment"
	@echo "make check-demo  run the demo in a temporary folder and check its figures"
	@echo "make ci          test, lint, types, imports, docs, wheel and check-demo"

demo: $(VENV)/installed
	$(BIN)/dflash-cache both --overlap

check-demo: $(VENV)/installed
	$(BIN)/python tests/demo/check.py

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not torture" --durations 25 --ignore tests/docs  # see `make docs`

torture: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m torture

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy -p dflash_cache -p cli

# The linter cannot follow the `cli` mapping of an editable install, so it looks at an unpacked
# wheel. That folder stands first on the path; everything else comes from the environment.
imports: $(VENV)/installed-dev build/wheel/built
	rm -rf build/imports
	$(PIP) install --quiet --no-deps --no-compile --target build/imports build/wheel/*.whl
	cd build/imports && PYTHONPATH=. $(BIN)/lint-imports --no-cache $(CURDIR)/pyproject.toml

docs: site
	$(BIN)/python -m pytest tests/docs

site: $(VENV)/installed-dev
	rm -rf build/site
	$(BIN)/sphinx-build -c docs -d build/site-pages -W --keep-going --quiet . build/site
	@echo "build/site/index.html written"

reference: $(VENV)/installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_python_reference.py

wheel: build/wheel/built
	rm -rf $(VENV)-wheel
	$(PYTHON) -m venv $(VENV)-wheel
	$(CLEAN_BIN)/python -m pip --disable-pip-version-check install --quiet \
		-c constraints.txt build/wheel/*.whl
	cd build && $(CLEAN_BIN)/dflash-cache --help
	cd build && $(CLEAN_BIN)/dflash-cache --version
	cd build && $(CLEAN_BIN)/python -c \
		"from dflash_cache import demo; (demo.TARGET / 'model.safetensors').stat()"
	rm -rf $(VENV)-wheel

ci: test lint types imports docs wheel check-demo

clean:
	rm -rf $(VENV) $(VENV)-wheel build dist

# setuptools keeps what it copied before, deleted modules included.
build/wheel/built: $(VENV)/installed-dev $(SOURCES)
	rm -rf build/wheel build/lib build/bdist.*
	$(BIN)/python -m build --wheel --outdir build/wheel .
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt tests/parity/speculators.txt $(VENV)/created
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps dflash==0.1.0  # the parity tests decode with it; it pins other versions
	rm -rf $(VENV)/speculators  # a folder that only its parity test looks into
	$(PIP) install --quiet --no-deps --no-compile --target $(VENV)/speculators \
		-r tests/parity/speculators.txt
	touch $@ $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/created
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/created:
	$(PYTHON) -c "import sys; sys.exit('Python 3.11 or newer is needed: make PYTHON=python3.12 ...' \
		if sys.version_info < (3, 11) else 0)"
	$(PYTHON) -m venv $(VENV)
	touch $@
