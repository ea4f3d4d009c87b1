# The same targets here and in CI. Each one sets up `.venv` first if it has to; without make: `python3 dev.py <target>`.
.PHONY: demo test check live format setup bench

demo test check live format setup:
	@python3 dev.py $@

bench: setup
	@.venv/bin/python -m benchmarks
