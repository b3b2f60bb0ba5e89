"""Run the command line as ``python -m numerate`` or ``accelerate launch -m numerate``."""

from numerate.cli import app

if __name__ == "__main__":  # worker processes import this file
    app(prog_name="numerate")
