"""The features of this processor, and C++ kernels where PyTorch is slow on it: attention, cross-entropy, decoding.
In: tensors. Out: the same numbers as PyTorch's, faster; where there is no compiler, PyTorch computes them.
Read cpu_features.py first, then attention.py beside cpu_attention.cpp."""
