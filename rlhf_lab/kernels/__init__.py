"""Kernels in C for the element-wise work of a model on a CPU, compiled once by the machine's compiler, and matrix
products.
"""
