"""C kernels for the CPU, compiled at first use; without a compiler PyTorch does the work."""
