# The same targets here and in CI; `python3 dev.py test` runs them on a fresh machine.
.PHONY: setup check test format demo bench
PY := .venv/bin/python

setup:
	python3 dev.py setup

format:
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

check:
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	.venv/bin/lint-imports
	.venv/bin/pyright

test:
	$(PY) -m pytest -n 2 --cov --cov-report=term

demo:
	.venv/bin/retinue demo

bench:
	$(PY) -m benchmarks
