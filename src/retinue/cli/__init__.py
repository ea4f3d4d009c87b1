"""The command line. Importing this costs nothing; `main` brings in what it needs."""

__all__ = ["main"]


def main() -> None:
    """Run `retinue` with the arguments of the process."""
    from retinue.cli.streams import open_missing_streams

    open_missing_streams()
    from retinue.cli.main import main as run

    run()
