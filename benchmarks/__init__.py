"""Benchmarks: time and memory of losses, fused operator, decoding and training steps, relative to a baseline.

python -m benchmarks --help
python -m benchmarks.training_speed --help
"""
