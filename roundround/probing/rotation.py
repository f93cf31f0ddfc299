"""Whether an encoding keeps the promise of `RotaryEncoding`: that its frequencies say everything about its rotation.

Shapes: B batch, T tokens, H heads, C head channels.
"""

from __future__ import annotations

import torch

from roundround.attention.keys import Keys
from roundround.pe.rotary import RotaryEncoding, apply_rotation, rotation

LENGTHS = 4  # times the training length: an encoding that follows the length shows it there


@torch.no_grad()
def is_said_by_frequencies(encoding: RotaryEncoding) -> bool:
    """Whether plain rotation at `frequencies()` is all that the encoding does to queries and keys at inference.

    Seen on a few vectors, because a class may define any hook anew: YaRN's attention factor or xPos's decay there would
    be lost by whoever reads the frequencies alone.
    """
    shape, generator = encoding.shape, torch.Generator().manual_seed(0)
    device = next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
    q = torch.randn(1, shape.n_heads, 3, shape.head_dim, generator=generator).to(device)
    k = torch.randn(1, shape.n_key_heads, 3, shape.head_dim, generator=generator).to(device)
    x_BTD = torch.randn(1, 3, shape.d_model, generator=generator).to(device)
    last = (encoding.longest() or LENGTHS * shape.train_length) - 1
    pos_BT = torch.tensor([[0, min(1, last), last]], device=device)
    cos, sin = rotation(pos_BT, encoding.frequencies(device=device))
    prepared = encoding.prepare(encoding.positions(pos_BT, None), q.dtype)
    prepared = encoding.prepare_layer(x_BTD, prepared, Keys(q_pos_BQ=pos_BT, k_pos_BK=pos_BT))
    turned = [(encoding.rotate_queries(q, prepared), q), (encoding.rotate_keys(k, prepared), k)]
    plain = all(torch.allclose(own, apply_rotation(x, cos, sin), atol=1e-3) for own, x in turned)
    adds = encoding.bias(q, k, prepared) is not None or not torch.equal(encoding.embed(x_BTD, pos_BT), x_BTD)
    return plain and not adds
