"""Writes `docs/reference/errors.md`: every code that Retinue raises, what it says, what to do, and where it comes from.

    python docs/generate_errors.py

All of it is read from the source: the classes, the calls that make errors, and the tables of texts beside them.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from msgspec.structs import replace

from retinue.models import faults

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "retinue"
PAGE: Final = ROOT / "docs" / "reference" / "errors.md"
LEFT_OUT: Final = ("testing",)

TABLES: Final = {"retinue.ledger.sqlite.faults": "LedgerUnavailable", "retinue.agent.next_step": "RunFailed"}
"""Modules with tables of (code, meaning, remedy), and what is raised of them."""
POSITIONS: Final = {
    "Finish": ("status", "code", "message", "remedy"),
    "Diagnostic": ("severity", "code", "message", "remedy"),
    "Finding": ("severity", "code", "message", "remedy"),
}
"""Values that carry a code without being errors: how a run ended, what was found in a file."""
MEANT: Final = {"Finish": "RunFailed"}
OTHER_NAMES: Final = {"reason": "code", "text": "message"}
"""What those values call what errors call `code` and `message`."""
TITLES: Final = {
    "Diagnostic": "What is found in agent files. Not raised: `retinue agents list` and `LoadReport.diagnostics` tell it.",
    "Finding": "What is found in a ledger and its surroundings. Not raised: `retinue doctor` tells it.",
}

Texts: TypeAlias = dict[str, str]
"""`code`, `message`, `remedy` as templates: `{name}` is a parameter of the function around it, `…` anything else."""


@dataclass
class Entry:
    """All that is known of one code of one class: pairs of what it says and what to do, and where it is raised."""

    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    modules: set[str] = field(default_factory=set[str])

    def add(self, says: str, remedy: str, module: str) -> None:
        says, remedy = (" ".join(text.split()) if text.strip("…`: ") else "" for text in (says, remedy))
        if (says or remedy) and (says, remedy) not in self.texts:
            self.texts.append((says, remedy))
        self.modules.add(module)


Book: TypeAlias = dict[str, dict[str, Entry]]


@dataclass(frozen=True)
class Maker:
    """A function that makes an error of what it is given."""

    kind: str
    texts: Texts
    parameters: tuple[str, ...]
    defaults: Mapping[str, str]


def modules() -> dict[str, ast.Module]:
    """The source, by module."""
    found: dict[str, ast.Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[1] not in LEFT_OUT:
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def error_classes(trees: Mapping[str, ast.Module]) -> dict[str, ast.ClassDef]:
    """Every class below `RetinueError`, in the order of the source."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: dict[str, ast.ClassDef] = {}
    while fresh := [
        node
        for node in classes
        if node.name not in found and (node.name == "RetinueError" or {_name(base) for base in node.bases} & found.keys())
    ]:
        found |= {node.name: node for node in fresh}
    return found


def default_codes(classes: Mapping[str, ast.ClassDef]) -> dict[str, str]:
    """`default_code` of each class, its own or inherited."""
    codes: dict[str, str] = {}
    for name, node in classes.items():
        inherited = [codes[_name(base)] for base in node.bases if _name(base) in codes]
        own = [
            statement.value.value
            for statement in node.body
            if isinstance(statement, ast.Assign)
            and _name(statement.targets[0]) == "default_code"
            and isinstance(statement.value, ast.Constant)
        ]
        codes[name] = str((own + inherited)[0])
    return codes


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _template(node: ast.expr | None, parameters: tuple[str, ...] = ()) -> str:
    """A text of the source with `…` for what is only known at run time."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_template(value, parameters) for value in values)
        case ast.FormattedValue(value=value):
            return _template(value, parameters)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left, parameters) + _template(right, parameters)
        case ast.IfExp(body=body):
            return _template(body, parameters)
        case ast.Name(id=name) if name in parameters:
            return f"{{{name}}}"
        case _:
            return "…"


def _given(call: ast.Call, positions: tuple[str, ...]) -> dict[str, ast.expr]:
    """The arguments of a call by name."""
    given = dict(zip(positions, call.args, strict=False))
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    return given | {OTHER_NAMES.get(name, name): value for name, value in named.items()}


def _texts(call: ast.Call, kind: str, default: str, parameters: tuple[str, ...]) -> Texts:
    given = _given(call, POSITIONS.get(kind, ("message",)))
    texts = {name: _template(given[name], parameters) if name in given else "" for name in ("code", "message", "remedy")}
    return texts | ({} if texts["code"] else {"code": default})


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            yield inner


def makers_of(tree: ast.Module, codes: Mapping[str, str]) -> dict[str, Maker]:
    """The functions of a module that make an error of their arguments."""
    found: dict[str, Maker] = {}
    for function in _functions(tree):
        spec = function.args
        names = tuple(one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if one.arg not in ("self", "cls"))
        defaults = dict(zip((one.arg for one in reversed(spec.args)), reversed(spec.defaults), strict=False))
        defaults |= {one.arg: value for one, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value is not None}
        for call in _calls(function):
            kind = _name(call.func)
            if kind not in codes and kind not in POSITIONS:
                continue
            texts = _texts(call, kind, codes.get(kind, ""), names)
            if any(f"{{{name}}}" in text for name in names for text in (texts["code"], texts["message"])):
                found[function.name] = Maker(kind, texts, names, {name: _template(value) for name, value in defaults.items()})
    return found


def _filled(maker: Maker, call: ast.Call) -> Texts:
    given = {name: _template(value) for name, value in _given(call, maker.parameters).items()}
    values = {name: given.get(name, maker.defaults.get(name, "…")) for name in maker.parameters}
    texts = dict(maker.texts)
    for name, value in values.items():
        texts = {key: text.replace(f"{{{name}}}", value) for key, text in texts.items()}
    return texts


def _imported(tree: ast.Module, makers: Mapping[str, Mapping[str, Maker]]) -> dict[str, Maker]:
    """The makers that a module imports, by the names that it calls them by."""
    found: dict[str, Maker] = {}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            home, name = node.module or "", alias.asname or alias.name
            if alias.name in makers.get(home, {}):
                found[name] = makers[home][alias.name]
            found |= {f"{name}.{inner}": maker for inner, maker in makers.get(f"{home}.{alias.name}", {}).items()}
    return found


def _is_code(text: str) -> bool:
    return bool(text) and text.replace("_", "").replace(":", "").isalnum() and text == text.lower()


def read(trees: Mapping[str, ast.Module], codes: Mapping[str, str]) -> Book:
    """Every code, by class."""
    book: Book = {MEANT.get(name, name): {} for name in (*codes, *POSITIONS)}
    own = {module: makers_of(tree, codes) for module, tree in trees.items()}

    def note(kind: str, texts: Texts, module: str) -> None:
        if _is_code(texts["code"]):
            entries = book[MEANT.get(kind, kind)]
            entries.setdefault(texts["code"], Entry()).add(texts["message"], texts["remedy"], module)

    for module, tree in trees.items():
        known = own[module] | _imported(tree, own)
        for call in _calls(tree):
            kind = _name(call.func)
            path = f"{_name(call.func.value)}.{kind}" if isinstance(call.func, ast.Attribute) else kind
            maker = known.get(path) or own[module].get(kind)
            if kind in codes or kind in POSITIONS:
                note(kind, _texts(call, kind, codes.get(kind, ""), ()), module)
            elif kind == "Fault" and call.args:
                note("ModelError", {"code": _template(call.args[0]), "message": "", "remedy": ""}, module)
            elif maker is not None:
                note(maker.kind, _filled(maker, call), module)
        for code, says, remedy in _table(tree) if module in TABLES else ():
            note(TABLES[module], {"code": code, "message": says, "remedy": remedy}, module)
    _add_model_errors(book["ModelError"])
    return book


def _table(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """The values of dictionaries that are a code, a meaning and a remedy."""
    for node in ast.walk(tree):
        for value in node.values if isinstance(node, ast.Dict) else ():
            if isinstance(value, ast.Tuple) and len(value.elts) == 3:
                code, says, remedy = map(_template, value.elts)
                yield code, says, remedy


def _add_model_errors(entries: dict[str, Entry]) -> None:
    """The texts of a model's faults, as its table makes them."""
    for code in faults.CODES:
        entry = entries.setdefault(code, Entry())
        fault, remote = faults.Fault(code), faults.Target("…", "…", "…", "…_API_KEY")
        ways = [fault, replace(fault, retry_after=20.0), replace(fault, final=True), replace(fault, once=True)]
        for error in (fault.error(replace(remote, local=True)), *(one.error(remote) for one in ways)):
            entry.add(error.message.rpartition(";")[0], error.remedy or "", "retinue.models.faults")


def _section(name: str, title: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    yield f"## `{name}`\n\n{title}\n"
    for code, entry in sorted(entries.items()):
        yield f"### `{code}`\n"
        passes = ""
        if name == "ModelError" and code in faults.CODES:
            passes = " May pass: it is tried again by itself." if faults.Fault(code).retryable else ""
        for says, remedy in entry.texts:
            yield f"* {says or 'the text follows from what it is about'}" + (f"\n  * to do: {remedy}" if remedy else "")
        places = ", ".join(f"`{module}`" for module in sorted(entry.modules))
        yield f"\nFrom {places}.{passes}\n"


def page() -> str:
    """The page as it should be."""
    trees = modules()
    classes = error_classes(trees)
    codes = default_codes(classes)
    titles = {name: (ast.get_docstring(node) or "").replace("\n    ", "\n") for name, node in classes.items()}
    titles |= TITLES
    lines = [
        "# Errors",
        "",
        "Written by `python docs/generate_errors.py` from the source; do not edit.",
        "",
        "Every error is a `RetinueError` with a stable `code` for programs, a `message` that says what was wrong and where,",
        "and a `remedy` that says what to do. The command line shows them as `retinue: message` and `to do: remedy`.",
        "Below, `…` stands for what is only known at run time. The `reason` of a run that failed is one of these codes, too.",
        "",
    ]
    for name, entries in read(trees, codes).items():
        if entries:
            lines += _section(name, titles[name], entries)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
