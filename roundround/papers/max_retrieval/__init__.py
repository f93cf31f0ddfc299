"""Max retrieval: one attention head that names the class of the item with the largest priority.

Table 1 of Velickovic et al. 2024, arXiv:2410.01104, is here for comparison: the accuracies in PAPER, the p-values in P.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

# by number of items: the accuracies of the plain softmax and of the adaptive temperature in per cent, from texts that
# quote the paper
PAPER = {
    16: (98.6, 98.6),
    32: (97.1, 97.1),
    64: (94.3, 94.5),
    128: (89.7, 89.9),
    256: (81.3, 82.1),
    512: (70.1, 72.5),
    1024: (53.8, 57.7),
    2048: (35.7, 39.4),
    4096: (22.6, 24.9),
    8192: (15.7, 17.5),
    16384: (12.4, 14.0),
}
SECOND_HAND = (32, 8192)  # the numbers of items whose rows no seen text quotes; they are marked wherever printed
# by number of items: p of the paired t-test of the adaptive temperature against the plain softmax, where quoted
P = {16: 0.4, 64: 0.002, 256: 2e-4, 1024: 1e-4, 4096: 0.02, 16384: 4e-3}
SEEDS = 10  # the number of seeds of that test, from memory: no text quotes it
# slope in nats per unit of priority, and spread of the classes in priority: an untrained head that is built with both
# has the accuracies of PAPER (test_retrieval_model.py)
SLOPE, SPREAD = 260.0, 0.0015
