"""Float64 all the way down: stops decoders from computing norms, rotary angles and softmax in float32.

Without it both sides of a comparison round to float32 inside, and equality can only be shown to about 1e-6. It replaces
the functions rather than entering a torch function mode, because a checkpointed block is replayed outside of such a mode.
"""

import functools
from unittest import mock

import torch
import torch.nn.functional as F


def _wide(function):
    @functools.wraps(function)
    def call(tensor, *args, **kwargs):
        if tensor.dtype == torch.float64:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return function(tensor, *args, **kwargs)

    return call


def _float(function):
    return lambda tensor, *args, **kwargs: (
        tensor if tensor.dtype == torch.float64 else function(tensor, *args, **kwargs)
    )


class Keep64:
    def __enter__(self):
        self.patches = [mock.patch.object(torch.Tensor, "float", _float(torch.Tensor.float))]
        for owner, name in [
            (torch.Tensor, "to"),
            (torch.Tensor, "type"),
            (torch.Tensor, "softmax"),
            (F, "softmax"),
            (torch, "softmax"),
        ]:
            self.patches.append(mock.patch.object(owner, name, _wide(getattr(owner, name))))
        for patch in self.patches:
            patch.start()

    def __exit__(self, *error):
        for patch in self.patches:
            patch.stop()
