"""`python -m ratemesh`: the command, also where no script of this name is installed."""

from ratemesh.cli.main import main

main()
