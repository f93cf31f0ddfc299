"""The finding of transformers 5.23.0 in ../engines_found.md: the windowed layers of Olmo 3 have the wrong base.

Prints sliding_attention 500000.0 and full_attention 10000.0, where both should be 10000.0.
"""

from transformers import Olmo3Config

c = Olmo3Config(rope_theta=10_000.0, rope_scaling=None)  # the form of transformers 4
for kind, rope in c.rope_parameters.items():
    print(kind, rope["rope_theta"])
