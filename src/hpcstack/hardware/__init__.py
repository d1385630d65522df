"""What is known of GPUs, drivers, CUDA and NVIDIA's images. Pure.

Each fact has its source (facts/). Takes names and versions; says whether a driver runs an image,
and how much memory training takes.
"""
