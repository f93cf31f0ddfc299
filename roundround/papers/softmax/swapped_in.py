"""The adaptive temperature in a language model that was not trained with it: stored measurements."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np

from roundround.analysis.intervals import half_width
from roundround.papers.claim import Claim, Curve, Finding, Picture, at_least

LENGTHS = (256, 512, 1024, 2048)  # tokens; trained at the first
DIFFERENCES = {  # nats per token more than with the softmax, by encoding and length: of seeds 1, 2 and 3
    "NoPE": ((0.0871, 0.07774, 0.09558), (0.08763, 0.06041, 0.08152),
             (0.06712, 0.03433, 0.06277), (0.05152, 0.02985, 0.0512)),
    "RoPE": ((0.05914, 0.06355, 0.05463), (0.05507, 0.06025, 0.05303),
             (0.04815, 0.05244, 0.0501), (0.04661, 0.05238, 0.06199)),
    "0.75-RoPE": ((0.05467, 0.05814, 0.05616), (0.06126, 0.05479, 0.0633),
                  (0.07866, 0.04823, 0.06673), (0.09052, 0.047, 0.0862)),
    "0.25-RoPE": ((0.07793, 0.08241, 0.08872), (0.06873, 0.08171, 0.077),
                  (0.05447, 0.06727, 0.04968), (0.06667, 0.06811, 0.04443)),
}  # fmt: skip


@final
class SwappedIn(Claim):
    """In a language model that was trained with the softmax, the adaptive temperature at inference alone does not work.

    loss with it - loss with the softmax > 0 on the same held-out tokens, paired by seed

    Velickovic et al. 2024, arXiv:2410.01104, section 5, of Gemma 2B on CLRS-Text, second-hand. Measured here on other
    models and other text (docs/encodings_by_normalisers.md), and stored.
    """

    title: ClassVar[str] = "not to be swapped in"

    def check(self) -> Finding:
        comparisons, curves = [], []
        for encoding, by_length in DIFFERENCES.items():
            means = np.mean(by_length, 1)
            lows = means - half_width(np.array(by_length).T)
            comparisons += [
                at_least(f"lower end of the 95 % interval, nats, {encoding}, {length:,} tokens", low, 0.0)
                for length, low in zip(LENGTHS, lows, strict=True)
            ]
            curves.append(Curve(encoding, LENGTHS, means))
        picture = Picture("context in tokens", "loss beyond the softmax's, nats per token", curves, log="x")
        return Finding(comparisons, picture, REMARK, can_fail=False)


REMARK = (
    "Stored, not made again here: four encodings at four lengths, Student's intervals over three seeds, models of a "
    "million parameters on TinyStories. The commands stand in docs/encodings_by_normalisers.md. The paper speaks of a "
    "task's accuracy, these numbers of the loss."
)
