"""The listing of p-RoPE in appendix D: which pairs rotate, and how fast."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
import torch

from roundround.papers.claim import Claim, Curve, Finding, Picture, near
from roundround.papers.constructions import THETA, random_vector, shape
from roundround.pe.p_rope import PRoPE

HEAD_DIMS, FRACTIONS = (64, 128, 256), (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ROTATED = {(64, 0.1): 3, (128, 0.1): 6, (256, 0.1): 12, (256, 0.9): 115, (256, 0.75): 96}  # p d / 2 = 3.2, ..., 115.2
POSITIONS = torch.tensor([0, 1, 2, 7, 100, 8191])
EPS = 2.0**-52  # of float64; an angle of 8,191 is exact to about this share, its sine and cosine to the same in radians


def timescales(head_dim: int, p: float) -> np.ndarray:
    """1 / g_k in tokens by the listing: int(p * head_dim // 2) powers of the base, then infinity: [P]."""
    rope_angles = int(p * head_dim // 2)
    fraction = 2.0 * np.arange(0, rope_angles) / head_dim
    return np.pad(THETA**fraction, (0, head_dim // 2 - rope_angles), constant_values=np.inf)


def apply_rope(x_NC: np.ndarray, positions_N: np.ndarray, p: float) -> np.ndarray:
    """The listing: [N, C]."""
    sinusoid_inp = positions_N[:, None] / timescales(x_NC.shape[-1], p)
    sin, cos = np.sin(sinusoid_inp), np.cos(sinusoid_inp)
    first_half, second_half = np.split(x_NC, 2, axis=-1)
    return np.concatenate([first_half * cos - second_half * sin, second_half * cos + first_half * sin], axis=-1)


@final
class PRopeListing(Claim):
    """p-RoPE rotates the first int(p d / 2) pairs at the frequencies of the whole ladder, and leaves the others alone.

    fraction = 2 arange(int(p * head_dim // 2)) / head_dim; timescale = base^fraction, padded with inf; angle =
    position / timescale

    Barbero et al. 2024, arXiv:2410.06205, appendix D (listing).
    """

    title: ClassVar[str] = "p-RoPE as code"

    def check(self) -> Finding:
        comparisons = []
        for head_dim in HEAD_DIMS:
            errors, wrong = [0.0], 0
            for p in FRACTIONS:
                ours, listed = frequencies(head_dim, p), 1 / timescales(head_dim, p)
                wrong += int(((ours == 0) != (listed == 0)).sum())
                errors.append(float(np.abs(ours - listed).max()))
            widest = max(self.largest_difference(head_dim, p) for p in FRACTIONS)
            bound = float(POSITIONS.max()) * 8 * EPS * 6  # angles, then coordinates of at most 6 standard deviations
            comparisons += [
                near(f"pairs that rest here and rotate there, or the reverse, head_dim = {head_dim}", wrong, 0, 0),
                near(f"largest difference of a frequency, head_dim = {head_dim}", max(errors), 0.0, 8 * EPS),
                near(
                    f"largest difference of a rotated coordinate up to token 8,191, head_dim = {head_dim}",
                    widest,
                    0.0,
                    bound,
                ),
            ]
        comparisons += [
            near(f"pairs that rotate, head_dim = {head_dim}, p = {p:g}",
                 int((frequencies(head_dim, p) > 0).sum()), expected, 0)
            for (head_dim, p), expected in ROTATED.items()
        ]  # fmt: skip
        slowest = frequencies(256, 0.75)[95]
        comparisons.append(near("slowest that rotates, head_dim = 256, p = 0.75, over 10,000^(-190/256)",
                                float(slowest) / THETA ** (-190 / 256), 1.0, 8 * EPS * 10))  # fmt: skip
        pairs = np.arange(1, 129)
        curves = [
            Curve(f"p = {p:g}", pairs[: int(p * 128)], frequencies(256, p)[: int(p * 128)]) for p in (1.0, 0.75, 0.25)
        ]
        curves.append(Curve("listing, p = 0.75", pairs[:96:8], 1 / timescales(256, 0.75)[:96:8], points=True))
        return Finding(comparisons, Picture("pair k, of those that rotate", "radians per token", curves, "y"))

    def largest_difference(self, head_dim: int, p: float) -> float:
        """Of a random query, and a key, as this program's encoding rotates them, against the listing."""
        encoding = PRoPE(shape(head_dim), p=p, theta=THETA)
        x_NC = random_vector(len(POSITIONS) * head_dim, seed=0).view(len(POSITIONS), head_dim)
        prepared = encoding.prepare(POSITIONS[None], torch.float64)
        listed = apply_rope(x_NC.numpy(), POSITIONS.numpy(), p)
        rotate = (encoding.rotate_queries, encoding.rotate_keys)
        return max(float(np.abs(turn(x_NC[None, None], prepared)[0, 0].numpy() - listed).max()) for turn in rotate)


def frequencies(head_dim: int, p: float) -> np.ndarray:
    """This program's, [P]."""
    found: np.ndarray = PRoPE(shape(head_dim), p=p, theta=THETA).frequencies(torch.float64).numpy()
    return found
