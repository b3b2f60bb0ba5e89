"""``python -m numerate``, and so ``accelerate launch -m numerate``."""

from numerate.cli import app

app(prog_name="numerate")
