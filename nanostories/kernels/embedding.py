"""
An embedding whose gradient is the same in every run, on any number of threads. On a CPU,
torch.compile's own adds the tokens' gradients to their rows atomically, in an order that no two
runs share.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class Embedding(torch.nn.Embedding):
    def forward(self, ids):
        if ids.device.type == "cpu":
            return Lookup.apply(ids, self.weight)
        return F.embedding(ids, self.weight)


class Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids, weight):
        ctx.save_for_backward(ids)
        ctx.n_rows = len(weight)
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx, dout):
        (ids,) = ctx.saved_tensors
        return None, torch.ops.nanostories.embedding_gradient(dout, ids, ctx.n_rows)


@torch.library.custom_op("nanostories::embedding_gradient", mutates_args=())
def embedding_gradient(dout: Tensor, ids: Tensor, n_rows: int) -> torch.Tensor:
    """dout (…, C), ids (…) -> (n_rows, C). Outside torch.compile PyTorch deals the rows out to the
    threads, and each adds up its own in the order of the ids."""
    return torch.ops.aten.embedding_dense_backward(dout, ids, n_rows, -1, False)


@embedding_gradient.register_fake
def _(dout, ids, n_rows):
    return dout.new_empty(n_rows, dout.size(-1))
