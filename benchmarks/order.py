"""Where the order of tokens comes from: interventions on the runs of experiment=order/text, for docs/results/order.md.

    python benchmarks/order.py OUTPUTS [CSV]    # OUTPUTS: the folder that the sweeps were written to

Each run is read with its held-out text; a row for each setting, seed, source taken away, distance and number. Runs that
the CSV (docs/results/order/interventions.csv) has already are not measured again.

Shapes: B windows, T tokens, P pairs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundround.data.prepared import tokens_of_run
from roundround.model.decoder import Decoder
from roundround.model.gated_deltanet import GatedDeltaNet
from roundround.model.mix import KeyOffset, ShortConvolution, Smear, TokenMix
from roundround.pe.rotary import RotaryEncoding
from roundround.trained.models import TrainedRun

WINDOWS, LENGTH, SHUFFLED = 512, 128, 64
DISTANCES = {"1": (1, 1), "2-3": (2, 3), "4-7": (4, 7), "8-15": (8, 15), "16-31": (16, 31), "32-63": (32, 63)}
COLUMNS = ("setting", "seed", "without", "metric", "distance", "value")
