"""Benchmarks: what the losses and the fused operator cost, against cross-entropy in the same run."""
