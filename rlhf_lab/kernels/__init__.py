"""Kernels in C for what lies between matrix products on a CPU, compiled once by the machine's own compiler, if it has one."""
