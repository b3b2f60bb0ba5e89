"""Benchmarks: time and memory of the losses and of the fused operator, relative to a baseline in the same run."""
