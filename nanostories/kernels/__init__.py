"""The features of this processor, and C++ kernels where PyTorch is slow on it: attention, GELU,
cross-entropy, decoding."""
