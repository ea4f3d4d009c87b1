"""`python -m retinue.cli` is `retinue`."""

from retinue.cli import main

main()
