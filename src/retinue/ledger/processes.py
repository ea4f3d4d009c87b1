"""What the system says of the process of an owner: whether it works, or was stopped and does nothing until it is woken."""

import socket
from pathlib import Path

from retinue.rows import OwnerRow

__all__ = ["is_stopped"]


def is_stopped(owner: OwnerRow) -> bool:
    """Whether the process of an owner that is alive is stopped (SIGSTOP, Ctrl-Z, a debugger).

    False where it cannot be known: on another host, and where there is no `/proc`.
    """
    if owner.host != socket.gethostname():
        return False
    try:
        status = Path(f"/proc/{owner.pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
