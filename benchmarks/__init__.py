"""Benchmarks: time and memory of the losses, of the fused operator, of decoding and of a training step, beside a baseline.

python -m benchmarks --help
python -m benchmarks.training_speed --help
"""
