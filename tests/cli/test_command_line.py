"""`retinue` as a person and a script use it: real processes against a strict provider on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.models.script import parse_script
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio


def script(provider: StrictProvider, **turns: Any) -> None:
    """What the provider says, by agent."""
    provider.script = parse_script({"agents": turns})


def spawn(agent: str, task: str = "look") -> dict[str, Any]:
    return {"name": "agent_spawn", "arguments": {"agent_id": agent, "task": task}}


def write_agent(workspace: Path, name: str = "reader") -> None:
    (workspace / "subagents").mkdir(exist_ok=True)
    text = "---\ndescription: Reads files\nworkspace:\n  mode: shared\n---\nYou read files.\n"
    (workspace / "subagents" / f"{name}.md").write_text(text)


def lines_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


async def test_the_answer_goes_to_stdout_and_all_else_to_stderr(command_line: Any, provider: StrictProvider) -> None:
    script(provider, assistant=["The answer.\x1b[2J"])
    ended = await command_line("run", "What?", *command_line.model)
    assert (ended.code, ended.out) == (0, "The answer.\N{REPLACEMENT CHARACTER}[2J\n")
    assert "assistant: started" in ended.err
    assert "Go on with: retinue run --session ses_" in ended.err
    quiet = await command_line("run", "-", "--quiet", *command_line.model, typed="What again?")
    assert (quiet.code, quiet.out, quiet.err) == (0, "The answer.\N{REPLACEMENT CHARACTER}[2J\n", "")
    assert provider.requests[-1].messages[-1]["content"] == "What again?"


async def test_a_session_is_continued(command_line: Any, provider: StrictProvider) -> None:
    await command_line("run", "First.", "--session", "s1", *command_line.model)
    await command_line("run", "Second.", "--session", "s1", *command_line.model)
    said = [message["content"] for message in provider.requests[-1].messages if message["role"] == "user"]
    assert said == ["First.", "Second."]
    listed = await command_line("threads", "list", "--json")
    (thread,) = json.loads(listed.out)
    assert (thread["session"], thread["thread"], thread["state"]) == ("s1", "main", "completed")
    shown = await command_line("threads", "show", "s1")
    assert "First." in shown.out
    assert "Second." in shown.out
    assert (await command_line("threads", "show", "s1/main")).out == shown.out
    assert (await command_line("threads", "tree", "s1/main")).code == 0
    missing = await command_line("threads", "show", "s1/other")
    assert (missing.code, "there is no thread `other` in session `s1`" in missing.err) == (2, True)


async def test_a_child_is_found_by_its_agent_key_and_a_pipe_gets_whole_lines(command_line: Any, provider: StrictProvider) -> None:
    write_agent(command_line.workspace)
    long = f"It reads {'and reads ' * 20}on"
    script(provider, assistant=[{"calls": [spawn("reader"), spawn("nobody")]}, "Done."], reader=[long])
    ended = await command_line("run", "Go.", "--trust", "--session", "s1", *command_line.model)
    assert "1 subagent," in ended.err
    tree = await command_line("threads", "tree")
    assert long[:180] in tree.out
    assert "error: there is no subagent `nobody`" in tree.out
    assert "2 agents, 3 model calls, " in tree.out
    listed = json.loads((await command_line("threads", "list", "--all", "--json")).out)
    child = next(one for one in listed if one["parent"])
    key = child["agentKey"]
    assert key.startswith("agent:reader:")
    assert long in (await command_line("threads", "show", key)).out
    assert (await command_line("explain", key)).code == 0
    assert (await command_line("threads", "show", "agent:reader:000000000000")).code == 2


async def test_json_lines_are_the_records_of_the_whole_tree(command_line: Any, provider: StrictProvider) -> None:
    write_agent(command_line.workspace)
    script(provider, assistant=[{"calls": [spawn("reader")]}, "Done."], reader=["Read."])
    ended = await command_line("run", "Go.", "--json", "--trust", *command_line.model)
    lines = lines_of(ended.out)
    assert ended.code == 0
    assert lines[-1]["type"] == "RUN_FINISHED"
    assert (lines[-1]["result"]["status"], lines[-1]["result"]["text"]) == ("completed", "Done.")
    assert all({"type", "session", "thread", "seq", "run", "at", "path", "live", "body"} <= line.keys() for line in lines)
    started = next(line for line in lines if line["type"] == "SUBAGENT_INVOCATION_STARTED")
    inside = [line for line in lines if line["invocations"] == [started["body"]["invocationId"]]]
    assert {tuple(line["path"]) for line in inside} == {("assistant", "reader")}
    stored = [line for line in lines if not line["live"]]
    shown = json.loads((await command_line("threads", "show", stored[0]["session"], "--json")).out)
    keys = ("type", "session", "thread", "seq", "generation", "run", "attempt", "at", "body")
    root = [{key: line[key] for key in keys} for line in stored if line["path"] == ["assistant"]]
    assert sorted(root, key=lambda line: line["seq"]) == [{key: line[key] for key in keys} for line in shown]
    tree = json.loads((await command_line("threads", "tree", "--json")).out)
    assert [(node["agent"], node["state"]) for node in tree["nodes"]] == [("assistant", "completed"), ("reader", "completed")]


@pytest.mark.contract("D-23")
async def test_agent_files_are_used_only_after_a_yes(command_line: Any, provider: StrictProvider) -> None:
    write_agent(command_line.workspace)
    refused = await command_line("run", "Go.", *command_line.model)
    assert refused.code == 2
    assert "reader.md" in refused.err
    assert f"`retinue run --trust --workspace {command_line.workspace} TASK`" in refused.err
    assert provider.requests == []
    async with command_line.terminal("run", "Go.", *command_line.model) as terminal:
        await terminal.until("[y/N]")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    assert (await command_line("run", "Again.", *command_line.model)).code == 0


@pytest.mark.contract("D-28")
async def test_a_permission_that_nobody_gives_lets_the_run_wait(command_line: Any, provider: StrictProvider) -> None:
    call = {"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}
    script(provider, assistant=[{"calls": [call]}, "Written."])
    ended = await command_line("run", "Write.", *command_line.model)
    assert ended.code == 3
    assert "asks for write_file" in ended.err
    assert "retinue resume run_" in ended.err
    busy = await command_line("run", "More.", "--session", session_in(ended.err), *command_line.model)
    assert busy.code == 3
    assert "`retinue answer req_" in busy.err
    assert "`retinue cancel run_" in busy.err
    assert "agent." not in busy.err
    async with command_line.terminal("resume") as terminal:
        question = await terminal.until("[a] yes, all of these: ")
        assert "write_file a.txt" in question
        assert "[a] is for every write_file of assistant in this session, whatever its arguments" in " ".join(question.split())
        terminal.type("maybe\n")
        await terminal.until("please type y, n or a")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    assert (command_line.workspace / "a.txt").read_text() == "x"


def session_in(text: str) -> str:
    return text.partition("(session ")[2].partition(")")[0]


async def test_permissions_are_asked_one_after_the_other(command_line: Any, provider: StrictProvider) -> None:
    calls = [{"name": "write_file", "arguments": {"path": f"{name}.txt", "content": name}} for name in "abc"]
    script(provider, assistant=[{"calls": calls[:2]}, {"calls": [calls[2]]}, "Written."])
    async with command_line.terminal("run", "Write.", *command_line.model) as terminal:
        for name, answer in (("a", "n"), ("b", "a")):
            assert f"write_file {name}.txt" in await terminal.until("all of these: ")
            terminal.type(f"{answer}\n")
        await terminal.until("Written.")
        assert await terminal.ended() == 0
    assert sorted(path.name for path in command_line.workspace.glob("*.txt")) == ["b.txt", "c.txt"]


async def test_end_of_input_leaves_the_question_open(command_line: Any, provider: StrictProvider) -> None:
    call = {"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}
    script(provider, assistant=[{"calls": [call]}, "Written."])
    async with command_line.terminal("run", "Write.", *command_line.model) as terminal:
        await terminal.until("all of these: ")
        terminal.type("\x04")
        assert await terminal.until("[") == "\r\n"  # what comes next stands on a line of its own
        assert await terminal.ended() == 3


async def test_rules_answer_in_advance(command_line: Any, provider: StrictProvider) -> None:
    calls = [{"name": "write_file", "arguments": {"path": path, "content": "x"}} for path in ("ok/a.txt", "no/a.txt")]
    script(provider, assistant=[{"calls": calls}, "Done."])
    rules = ("--allow", "write_file(ok/*)", "--deny", "write_file(no/*)")
    assert (await command_line("run", "Write.", *rules, *command_line.model)).code == 0
    assert (command_line.workspace / "ok" / "a.txt").exists()
    assert not (command_line.workspace / "no").exists()


@pytest.mark.crash
async def test_ctrl_c_stops_the_whole_tree_and_keeps_it(command_line: Any, provider: StrictProvider) -> None:
    write_agent(command_line.workspace)
    script(provider, assistant=[{"text": "I ask the reader.", "calls": [spawn("reader")]}, "Done."], reader=["Read."])
    gate = provider.hold(agent="reader")
    async with command_line.started("run", "Go.", "--trust", "--session", "s1", *command_line.model) as running:
        await gate.arrived.wait()
        running.signal(signal.SIGINT)
        ended = await running.ended()
    assert (ended.code, ended.out) == (130, "")
    assert "Stopping the whole tree" in ended.err
    assert "Kept: session s1, thread main" in ended.err
    assert "retinue run --session s1" in ended.err
    tree = json.loads((await command_line("threads", "tree", "--json")).out)
    assert [node["state"] for node in tree["nodes"]] == ["cancelled", "cancelled"]
    count = len(provider.requests)
    assert (await command_line("run", "Go on.", "--session", "s1", *command_line.model)).code == 0
    assert len(provider.requests) > count


@pytest.mark.crash
async def test_a_second_signal_leaves_at_once_and_the_run_can_be_resumed(command_line: Any, provider: StrictProvider) -> None:
    gate = provider.hold()
    async with command_line.started("run", "Go.", "--session", "s1", *command_line.model) as running:
        await gate.arrived.wait()
        running.signal(signal.SIGSTOP)  # so that both are seen before anything can be done about the first
        running.signal(signal.SIGINT)
        running.signal(signal.SIGTERM)
        running.signal(signal.SIGCONT)
        ended = await running.ended()
    assert ended.code == 130
    assert "Left at once" in ended.err
    resumed = await command_line("resume", "s1")
    assert (resumed.code, resumed.out) == (0, "ok\n")


@pytest.mark.crash
async def test_a_killed_run_is_resumed_and_asks_nothing_twice(command_line: Any, provider: StrictProvider) -> None:
    write_agent(command_line.workspace)
    script(provider, assistant=[{"calls": [spawn("reader")]}, "Done."], reader=["Read."])
    gate = provider.hold(agent="assistant", step=2)
    async with command_line.started("run", "Go.", "--trust", *command_line.model) as running:
        await gate.arrived.wait()
        alive = await command_line("resume")
        assert (alive.code, alive.err) == (0, "nothing to resume: no run is interrupted or waiting\n")
        running.signal(signal.SIGKILL)
        await running.ended()
    ended = await command_line("resume", "--json")
    assert ended.code == 0
    taken = [line for line in lines_of(ended.out) if not line["live"]]
    assert (taken[0]["type"], taken[0]["body"]["attempt"]) == ("RUN_STARTED", 2)
    assert {line["attempt"] for line in taken} == {2}
    assert "result" in lines_of(ended.out)[-1], ended.out
    assert lines_of(ended.out)[-1]["result"]["text"] == "Done."
    assert [(request.agent, request.step) for request in provider.requests] == [
        ("assistant", 1),
        ("reader", 1),
        ("assistant", 2),
        ("assistant", 2),
    ]
    again = await command_line("resume", lines_of(ended.out)[-1]["run"])
    assert again.code == 2
    assert "has ended" in again.err


@pytest.mark.crash
async def test_a_stopped_process_can_be_taken_over_and_writes_nothing_more(command_line: Any, provider: StrictProvider) -> None:
    gate = provider.hold()
    async with command_line.started("run", "Go.", "--session", "s1", *command_line.model) as running:
        await gate.arrived.wait()
        running.signal(signal.SIGSTOP)
        refused = await command_line("resume", "s1")
        assert refused.code == 1
        assert f"process {running.process.pid}" in refused.err
        assert "--take-over" in refused.err
        taken = await command_line("resume", "s1", "--take-over", "--json")
        assert lines_of(taken.out)[-1]["result"]["text"] == "ok"
        gate.release()
        running.signal(signal.SIGCONT)
        revived = await running.ended()
    assert (revived.code, revived.out) == (1, "")
    assert "taken" in revived.err
    shown = json.loads((await command_line("threads", "show", "s1", "--json")).out)
    assert [record["type"] for record in shown].count("RUN_FINISHED") == 1
    assert [record["attempt"] for record in shown if record["type"] == "RUN_STARTED"] == [1, 2]


@pytest.mark.crash
async def test_a_run_at_work_is_taken_over_only_after_a_yes(command_line: Any, provider: StrictProvider) -> None:
    gate = provider.hold()
    async with command_line.started("run", "Go.", "--session", "s1", *command_line.model) as running:
        await gate.arrived.wait()
        explained = await command_line("explain", "s1")
        assert "at work, and nothing needs to be done" in explained.out
        assert "  command " not in explained.out
        assert "  stop it    retinue cancel run_" in explained.out
        assert "only where that process does nothing any more" in explained.out
        refused = await command_line("resume", "s1", "--take-over")
        assert (refused.code, "is not stopped" in refused.err, "`--yes`" in refused.err) == (2, True, True)
        assert f"process {running.process.pid}" in refused.err
        async with command_line.terminal("resume", "s1", "--take-over") as terminal:
            await terminal.until("[y/N]")
            terminal.type("n\n")
            assert await terminal.ended() == 130
        running.signal(signal.SIGSTOP)
        stopped = json.loads((await command_line("explain", "s1", "--json")).out)
        assert "--take-over" in stopped["command"]
        assert stopped["heldBy"].endswith("which is stopped")
        running.signal(signal.SIGCONT)
        taken = await command_line("resume", "s1", "--take-over", "--yes", "--quiet")
        assert (taken.code, taken.out) == (0, "ok\n")
        gate.release()
        assert (await running.ended()).code == 1


async def test_a_question_that_nobody_answers_is_not_asked_again(command_line: Any, provider: StrictProvider) -> None:
    call = {"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}
    script(provider, assistant=[{"calls": [call]}, "Written."])
    assert (await command_line("run", "Write.", "--session", "s1", *command_line.model)).code == 3
    before = (await command_line("threads", "show", "s1", "--json")).out
    ended = await command_line("resume", "s1")
    assert (ended.code, "asks for write_file" in ended.err, "retinue answer req_" in ended.err) == (3, True, True)
    as_json = await command_line("resume", "s1", "--json")
    (line,) = lines_of(as_json.out)
    assert (as_json.code, line["type"], line["result"]["status"], line["result"]["session"]) == (
        3,
        "RUN_FINISHED",
        "waiting",
        "s1",
    )
    assert [one["tool"] for one in line["result"]["requests"]] == ["write_file"]
    assert (await command_line("threads", "show", "s1", "--json")).out == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "Go."), 2, "no model is named"),
        (("run", "Go.", "--model", "nobody:x"), 2, "`nobody:x` is not known"),
        (("run", "Go.", "--model", "http://127.0.0.1:9/v1#x"), 5, "127.0.0.1:9"),
        (("run", " ", "--model", "openai:x"), 2, "the task is empty"),
        (("run", "Go.", "--model", "openai:x", "--allow", "x("), 2, "permission rule"),
        (("run", "Go.", "--model", "openai:x", "--workspace", "missing"), 2, "missing"),
        (("run", "Go.", "--model", "openai:x", "--ledger", "missing/l.db"), 2, "correct the path, or make the folder first"),
        (("run", "Go.", "--model", "openai:x", "--session", "a/b"), 2, "`a/b` is not valid"),
        (("run", "--frobnicate"), 2, "No such option"),
        (("resume", "run_nothing"), 2, "no ledger"),
        (("threads", "list"), 2, "no ledger"),
    ],
)
async def test_faults_are_told_in_words(command_line: Any, arguments: tuple[str, ...], code: int, said: str) -> None:
    ended = await command_line(*arguments, env={"OPENAI_API_KEY": "k"})
    assert ended.code == code, ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("run", "Go."), 2, "no_model"),
        (("threads", "list"), 2, "no_ledger"),
        (("resume", "--workspace", "missing"), 2, "no_ledger"),
        (("run", "Go.", "--frobnicate"), 2, "usage"),
    ],
)
async def test_with_json_an_error_is_a_line_of_it_too(
    command_line: Any, arguments: tuple[str, ...], code: int, error: str
) -> None:
    ended = await command_line(*arguments, "--json")
    (line,) = lines_of(ended.out)
    assert (ended.code, line["exit"]) == (code, code)
    assert (line["type"], line["code"], bool(line["message"])) == ("ERROR", error, True)
    assert line["message"] in ended.err
    assert (await command_line(*arguments)).out == ""


async def test_a_limit_has_its_own_code(command_line: Any, provider: StrictProvider) -> None:
    provider.script = parse_script({"fallback": {"calls": [{"name": "list_files"}]}})
    ended = await command_line("run", "Go.", "--max-iters", "2", *command_line.model)
    assert ended.code == 4, ended.err
    assert "limit:max_iters" in ended.err


async def test_the_model_can_be_named_once(command_line: Any, provider: StrictProvider) -> None:
    url = f"{provider.url}#fake"
    assert (await command_line("run", "Go.", env={"RETINUE_MODEL": url})).code == 0
    (command_line.workspace / ".retinue" / "config.toml").write_text(f'model = "{url}"\n')
    assert (await command_line("run", "Go.")).code == 0
    (command_line.workspace / ".retinue" / "config.toml").write_text("model = \n")
    broken = await command_line("run", "Go.")
    assert broken.code == 2
    assert "config.toml" in broken.err
    (command_line.workspace / ".retinue" / "config.toml").write_text(f'modle = "{url}"\n')
    for command in (("run", "Go."), ("doctor",)):
        slip = await command_line(*command)
        assert slip.code == (2 if command[0] == "run" else 1)
        assert "did you mean `model`?" in slip.err + slip.out
    (command_line.workspace / ".retinue" / "config.toml").write_text("model = 5\n")
    wrong = await command_line("run", "Go.")
    assert (wrong.code, "has `model` = `5`, which is not text" in wrong.err) == (2, True)


async def test_agents_of_a_folder(command_line: Any) -> None:
    write_agent(command_line.workspace)
    listed = await command_line("agents", "list", "--json")
    assert [agent["agentId"] for agent in json.loads(listed.out)["agents"]] == ["general-purpose", "reader"]
    (command_line.workspace / "subagents" / "bad.md").write_text("---\ndescription: [\n---\n")
    bad = await command_line("agents", "list")
    assert bad.code == 1
    assert "reader" in bad.out
    assert "bad.md" in bad.err


async def test_what_is_found_in_agent_files_cannot_move_the_cursor(command_line: Any, provider: StrictProvider) -> None:
    script(provider, assistant=["The answer."])
    write_agent(command_line.workspace)
    (command_line.workspace / "subagents" / "esc\x1b[31m.md").write_text("---\ndescription: [\n---\n")
    ran = await command_line("run", "Go.", "--trust", *command_line.model)
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err
    assert ran.err.count("[31m.md") == 1
    listed = await command_line("agents", "list")
    assert "[31m.md" in listed.err
    assert "\x1b" not in listed.out + listed.err


async def test_a_reader_that_goes_away_does_not_end_the_run(command_line: Any, provider: StrictProvider) -> None:
    gate = provider.hold()
    reader, writer = os.pipe()
    arguments = ("run", "Go.", "--json", "--session", "s1", *command_line.model)
    async with command_line.started(*arguments, stdout=writer) as running:
        os.close(writer)
        await gate.arrived.wait()
        os.close(reader)
        gate.release()
        assert (await running.ended()).code == 0
    (thread,) = json.loads((await command_line("threads", "list", "--json")).out)
    assert thread["state"] == "completed"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['retinue', '--help']\nfrom retinue.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'aiohttp', 'pydantic', 'rich', 'yaml', 'msgspec', 'sqlite3', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr


async def test_version(command_line: Any) -> None:
    from importlib.metadata import version

    assert (await command_line("--version")).out == f"retinue {version('retinue')}\n"
