"""Benchmarks: time and memory of the losses, of the fused operator and of decoding, relative to a baseline in the same run."""
