"""C kernels for a model's element-wise operations and matrix products on a CPU, compiled once by the machine's compiler."""
