"""The process that tries a regular expression: started by `matching`, reads texts on stdin, answers line numbers.

A pattern can take for ever, and Python's `re` holds the interpreter meanwhile: so it runs where it can be killed.
"""

import json
import re
import sys


def main() -> None:
    """First line: the pattern as JSON. Then, for each text, `<bytes> <most matches>` and the text in UTF-8."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    limit_cpu(int(sys.argv[1]))

    def answer(value: object) -> None:
        sink.write(json.dumps(value).encode() + b"\n")
        sink.flush()

    try:
        search = re.compile(json.loads(source.readline())).search
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        answer(str(error) or type(error).__name__)
        return
    answer(None)
    while header := source.readline():
        size, most = (int(part) for part in header.split())
        found: list[int] = []
        for index, line in enumerate(source.read(size).decode().split("\n")):
            if len(found) >= most:
                break
            if search(line):
                found.append(index)
        answer(found)


def limit_cpu(seconds: int) -> None:
    """Let the system end this process, should its parent be gone."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    except (ImportError, OSError, ValueError):
        pass


if __name__ == "__main__":
    main()
