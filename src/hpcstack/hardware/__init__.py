"""What is known of GPUs, drivers, CUDA and NVIDIA's images, each row with its source (facts/). In:
names and versions. Out: whether a driver runs an image, how much memory training takes. Pure.
"""
