"""Run the command line as ``python -m numerate`` or ``accelerate launch -m numerate``."""

from numerate.cli import app

app(prog_name="numerate")
