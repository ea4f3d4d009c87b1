"""llama.cpp's own server, from the wheel `xllamacpp`, for `make live`: `python llama_server.py MODEL.gguf`.

It runs under the Python of `.build/live`, not ours. It prints its base URL, and ends when its standard input does.
"""

import sys
from importlib import import_module
from typing import Any

LONGEST = 256
"""Tokens of an answer: a model of 135 million parameters would go on for ever."""


def settings(xllamacpp: Any, path: str) -> Any:
    """One thread that does not spin: spinning ones collapse as soon as anybody else wants the cores."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = ["smollm2"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = 2  # two children at once
    params.n_ctx = 2 * 8192
    params.n_predict = LONGEST
    params.warmup = False
    params.offline = True
    params.ui = False
    params.verbosity = 1
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = 1
        threads.poll = 0
    sampling = params.sampling
    sampling.seed, sampling.temp, sampling.penalty_repeat = 1, 0.3, 1.1
    return params


def main(path: str) -> None:
    """Serve a model on a free port of this machine until standard input ends."""
    xllamacpp: Any = import_module("xllamacpp")  # which only `.build/live` has
    server: Any = xllamacpp.Server(settings(xllamacpp, path))
    print(f"{server.listening_address}/v1", flush=True)
    sys.stdin.buffer.read()
    del server  # which ends it


if __name__ == "__main__":
    main(sys.argv[1])
