"""Under another locale than a UTF-8 one: names of files, tasks and rules mean the same, and say the same to the model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BAD = b"bad\xff.txt"
SCRIPT: dict[str, Any] = {
    "agents": {
        "*": [
            {
                "calls": [
                    {"name": "list_files", "arguments": {"path": "."}},
                    {"name": "read_file", "arguments": {"path": "ordner ü/ä.txt"}},
                    {"name": "write_file", "arguments": {"path": "neu/ö.txt", "content": "ß"}},
                    {"name": "write_file", "arguments": {"path": "é.txt", "content": "x"}},
                    {"name": "edit_file", "arguments": {"path": "ordner ü/ä.txt", "old": "hallo", "new": "hallö"}},
                    {"name": "grep_files", "arguments": {"pattern": "hall|needle"}},
                    {"name": "read_file", "arguments": {"path": "bad\ufffd.txt"}},
                ]
            },
            "{input}\n{results}",
        ]
    }
}


@pytest.mark.parametrize("variables", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}])
@pytest.mark.parametrize("piped", [True, False])
def test_names_tasks_and_rules_mean_the_same_under_every_locale(tmp_path: Path, variables: dict[str, str], piped: bool) -> None:
    place = tmp_path / "hof ü"
    (place / "ordner ü").mkdir(parents=True)
    (place / "ordner ü" / "ä.txt").write_text("hallo\n", encoding="utf-8")
    try:
        with open(os.fsencode(place) + b"/" + BAD, "wb") as file:
            file.write(b"needle\n")
    except OSError:
        pytest.skip("this file system takes no names that are not UTF-8")
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    command = [sys.executable, "-m", "retinue.cli", "run", "-" if piped else "Grüße", "--workspace", str(place), "--json"]
    command += [
        "--model",
        f"scripted:{script}",
        "--allow",
        "write_file(neu/ö*)",
        "--allow",
        "edit_file",
        "--deny",
        "write_file(é*)",
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETINUE_", "LC_", "PYTHON", "LANG"))}
    given = "Grüße".encode() if piped else b""
    ended = subprocess.run(command, env=kept | variables, input=given, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    text = json.loads(ended.stdout.splitlines()[-1])["result"]["text"]
    assert "Grüße" in text
    assert "hallo" in text
    assert "Created `neu/ö.txt`" in text
    assert "rule `write_file(é*)`" in text
    assert "ordner ü/ä.txt:1: hallö" in text
    assert "bad\ufffd.txt:1: needle" in text
    assert "name of `bad\ufffd.txt` is not valid UTF-8" in text
    assert (place / "neu" / "ö.txt").read_text(encoding="utf-8") == "ß"
    assert (place / "ordner ü" / "ä.txt").read_text(encoding="utf-8") == "hallö\n"
