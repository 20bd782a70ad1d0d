"""Functions usable without the tuner: kernels, gradient compressors, batched assignment."""
