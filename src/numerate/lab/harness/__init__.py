"""Tasks and metrics for lm-evaluation-harness: ``lm_eval run --include_path $(python -m numerate.lab.harness)``."""
