"""Which rotation gives the weights of a pretrained model the lowest loss on text, for each kind of layers.

The model's own rotation is switched off, and queries and keys are rotated by a guess: `rope_parameters` as in
config.json, and which channels form a pair. The search goes from coarse to fine, one kind of layers at a time: bases
with pairings, then the share of pairs that rotate and the scalings, then finer bases.

The rule. The first half of the texts chooses the best guess, and the second half judges. There the losses under two
guesses are compared text by text; the 95 % interval of the mean difference is that of Student's t over texts. A guess
cannot be told apart from the best if the interval includes 0; the answer is the one of these with the fewest keys. The
weights contradict their config if the declared rotation costs at least LEAST nats per token more than the best, and the
interval is above 0. There is no verdict if the best loss is not below the loss of guessing each token by its frequency
in the text: such a model has not learnt this text.

Shapes: B texts, T tokens, P pairs of channels.

Tested by tests/asking/test_fitted_rotations.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from roundround.asking.applied_rotations import AS_DECLARED, declared_by, rope_of
from roundround.engines.mistakes import NEIGHBOURS, around_rotation, attentions, code_of, head_dim, rotating
from roundround.hf.patching.frequencies import Rotation, follows_length, rotary_tables
from roundround.pe.nope import NoPE
from roundround.pe.rotary import RotaryEncoding
from roundround.probing.conformance import DIFFERS
from roundround.probing.layout import PAIRINGS
from roundround.support.console import print_status
from roundround.support.errors import NoVerdict, UserError

TEXTS, SEARCHED, LENGTH = 16, 2, 512  # texts in all and in the search, and the most tokens of a text
JUDGED = TEXTS // 2  # the last texts; the first ones choose the best
LEAST = 0.01  # nats per token
ROUNDS, FINALISTS, NEAR = 3, 12, 0.1  # of the search, and who is asked on every text: the best, within NEAR nats
UNROTATED = ", without rotation"  # at the end of the name of a kind
BASES = [10.0**power for power in range(2, 8)]
FINER = [10**power for power in (-0.5, -0.25, -0.1, 0.1, 0.25, 0.5)]
NOTHING: dict[str, Any] = {"rope_type": "proportional", "partial_rotary_factor": 0.0}
FORMS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    NOTHING,
    *({"rope_type": k, "partial_rotary_factor": p} for k in ("proportional", "default") for p in (0.25, 0.5, 0.75)),
    *({"rope_type": k, "factor": f} for k in ("linear", "llama3") for f in (2.0, 4.0, 8.0, 32.0)),
    # without YaRN's factor of the logits: a sharper attention alone can lower the loss
    *({"rope_type": "yarn", "factor": f, "attention_factor": 1.0} for f in (2.0, 4.0, 8.0, 32.0)),
]


class Guess(NamedTuple):
    """A rotation: `rope_parameters` of config.json, and which channels form a pair, one of PAIRINGS."""

    rope: Mapping[str, Any]
    pairing: str

    def __str__(self) -> str:
        said = [
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in self.rope.items()
        ]
        return "no rotation" if self.rope.items() >= NOTHING.items() else ", ".join([*said, self.pairing])


def declared_rotations(model: PreTrainedModel) -> tuple[list[str], dict[str, Guess]]:
    """The kind of each layer, and what the config declares for each kind.

    Raises UserError if the model does not rotate by tables of frequencies that are the same at every length, or if its
    layers without rotation scale their queries (Llama 4), which they stop to do when they rotate.
    """
    config, kinds, declared = model.config.get_text_config(), [], {}
    if not rotary_tables(model):
        raise UserError(
            f"{type(model).__name__} has no rotary encoding with a table of frequencies; nothing can be asked"
        )
    for layer in range(config.num_hidden_layers):
        said = declared_by(config, layer, head_dim(model), config.max_position_embeddings)
        kind, rope = (getattr(config, "layer_types", None) or {layer: "all layers"})[layer], rope_of(config, layer)
        scales = getattr(config, "attn_temperature_tuning", False)
        if scales or said.encoding is None or rope is None or follows_length(model):
            raise UserError(f"{type(model).__name__}: the rotation of layer {layer} cannot be replaced by another one")
        if isinstance(said.encoding, NoPE):
            kind, rope = f"{kind}{UNROTATED}", {"rope_theta": rope["rope_theta"], **NOTHING}
        kinds.append(kind)
        declared[kind] = Guess(rope, said.pairing or PAIRINGS[config.model_type in NEIGHBOURS])
    return kinds, declared


def loss_of(model: PreTrainedModel, kinds: Sequence[str], guesses: Mapping[str, Guess], texts_BT: Tensor) -> Tensor:
    """Mean nats per token of the second half of each text, [B], if the layers of each kind rotate as guessed.

    Tokens of the second half see the longer contexts, and their number saves half of the logits.
    """
    config, pos_T1 = model.config.get_text_config(), torch.arange(texts_BT.shape[1])[:, None]
    running, turns = [""], {}
    for kind, guess in guesses.items():
        view = SimpleNamespace(model_type="", rope_parameters=guess.rope)
        encoding = declared_by(view, 0, head_dim(model), config.max_position_embeddings).encoding
        frequencies_P = encoding.frequencies() if isinstance(encoding, RotaryEncoding) else torch.zeros(1)
        factor = torch.full_like(pos_T1 * frequencies_P, getattr(encoding, "attention_factor", 1.0))
        turns[kind] = torch.polar(factor, pos_T1 * frequencies_P).to(texts_BT.device)

    def rotated(x: Tensor) -> Tensor:
        turns_TP, half_split = turns[running[0]], guesses[running[0]].pairing == PAIRINGS[0]
        channels = torch.arange(2 * turns_TP.shape[1]).view(*((2, -1) if half_split else (-1, 2)))
        first_P, second_P = channels if half_split else channels.T
        tokens_first = x.shape[1] == len(pos_T1)  # [B, T, H, C], else [B, H, T, C]
        made = x.to(torch.float32, copy=True)
        turned = torch.complex(made[..., first_P], made[..., second_P]) * (
            turns_TP[:, None] if tokens_first else turns_TP
        )
        made[..., first_P], made[..., second_P] = turned.real, turned.imag
        return made.to(x.dtype)

    if any(kind.endswith(UNROTATED) for kind in kinds):
        rotating(model, [1] * len(kinds))  # for good; a guess of no rotation is the identity
    with ExitStack() as undo:
        for table in rotary_tables(model):
            undo.callback(table.put, table.rotation())
            table.put(Rotation(torch.zeros_like(table.frequencies_P)))  # a cosine of 1 and a sine of 0
        for layer, kind in zip(attentions(model), kinds, strict=True):
            note = partial(lambda kind, *_: running.__setitem__(0, kind), kind)
            undo.enter_context(layer.register_forward_pre_hook(note))
        undo.enter_context(patch.dict(vars(code_of(model)), around_rotation(model, rotated)))
        half = texts_BT.shape[1] // 2
        logits = (model(text[None], use_cache=False, logits_to_keep=half + 1).logits[0, :-1] for text in texts_BT)
        return torch.stack(
            [cross_entropy(x_TV.float(), text[-half:]) for x_TV, text in zip(logits, texts_BT, strict=True)]
        ).cpu()


def variants(guess: Guess, longest: int) -> list[list[Guess]]:
    """Other guesses along each axis of the search."""
    theta, pairing, trained = guess.rope["rope_theta"], guess.pairing, "original_max_position_embeddings"
    forms = [
        {**form, trained: guess.rope.get(trained, int(longest / form["factor"]))} if "factor" in form else form
        for form in FORMS
    ]
    own = {key: value for key, value in guess.rope.items() if key != "rope_theta"}
    return [
        [Guess({"rope_theta": one, **form}, way) for form in (own, FORMS[0]) for one in BASES for way in PAIRINGS],
        [Guess({"rope_theta": theta, **form}, pairing) for form in forms],
        [Guess({"rope_theta": theta * by, **own}, pairing) for by in FINER],
    ]


def begun_with(
    first: int | None,
    model: PreTrainedModel,
    kinds: Sequence[str],
    declared: Mapping[str, Guess],
    texts_BT: Tensor,
) -> Tensor:
    """The texts, each with the token `first` in the place of its own first token if that lowers the loss.

    Some models (Gemma) go astray without the token that began every text in their training.
    """
    ways = [texts_BT]
    if first is not None:
        ways.append(torch.cat([torch.full_like(texts_BT[:, :1], first), texts_BT[:, 1:]], 1))
    return min(ways, key=lambda way: float(loss_of(model, kinds, declared, way[:SEARCHED]).mean()))


def fitted_rotations(
    model: PreTrainedModel, ids: Sequence[int], *, first: int | None = None, length: int = LENGTH
) -> list[dict[str, Any]]:
    """A record for each kind of layers: what the declared rotation costs more than the best, in nats per token.

    ids: the text in tokens. first: see `begun_with`. length: the most tokens of a text. The model is changed for good.
    Raises UserError if the text is too short, or if the model does not rotate by fixed tables; NoVerdict if the text or
    the model's loss says nothing.
    """
    kinds, declared = declared_rotations(model)
    best, longest = dict(declared), int(model.config.get_text_config().max_position_embeddings)
    if len(ids) < TEXTS * (length := min(length, longest)):
        raise UserError(f"text= has {len(ids):,} tokens; {TEXTS * length:,} are needed")
    texts_BT = torch.tensor(ids[: TEXTS * length], device=model.device).view(TEXTS, length)
    n_V = texts_BT[:, -(length // 2) :].flatten().bincount()
    chance = float(torch.special.entr(n_V / n_V.sum()).sum())
    if (texts_BT == texts_BT[0]).all():
        raise NoVerdict(f"the text says nothing: its {TEXTS} stretches of {length} tokens are alike")
    texts_BT = begun_with(first, model, kinds, declared, texts_BT)
    seen: dict[str, dict[str, tuple[float, Guess]]] = {}
    for _ in range(ROUNDS):
        before = dict(best)
        for kind in best:
            seen[kind] = {}
            for axis in range(3):
                for guess in (best[kind], *variants(best[kind], longest)[axis]):
                    if str(guess) not in seen[kind]:
                        loss = loss_of(model, kinds, {**best, kind: guess}, texts_BT[:SEARCHED])
                        seen[kind][str(guess)] = (float(loss.mean()), guess)
                stays = {str(best[kind]): LEAST / 2}  # a smaller gain on so few texts is noise
                best[kind] = min(seen[kind].values(), key=lambda one: one[0] - stays.get(str(one[1]), 0.0))[1]
            print_status(f"{kind}, best on {SEARCHED} stretches so far: {best[kind]}")
        if best == before:
            break
    found = []
    for kind in best:
        (least_searched, _), *_ = ranked = sorted(seen[kind].values(), key=itemgetter(0))[:FINALISTS]
        finalists = [declared[kind], *(one for loss, one in ranked if loss - least_searched < NEAR)]
        losses = [loss_of(model, kinds, {**best, kind: one}, texts_BT) for one in finalists]
        least = min(losses, key=lambda loss: float(loss[:JUDGED].mean()))
        if not float(least.mean()) < chance:
            raise NoVerdict(
                f"the model has not learnt this text: its best loss is {float(least.mean()):.3g} nats per token, and "
                f"guessing each token by its frequency in the text costs {chance:.3g}"
            )
        means = [float((loss - least)[JUDGED:].mean()) for loss in losses]
        widths = [float(stdtrit(JUDGED - 1, 0.975) * (loss - least)[JUDGED:].std() / JUDGED**0.5) for loss in losses]
        alike = [one for one, mean, width in zip(finalists, means, widths, strict=True) if mean <= width]
        simplest = min(alike, key=lambda one: len(one.rope))
        found.append(
            {
                "metric": "cost_of_declared",
                "value": means[0],
                "half_width": widths[0],
                "kind": kind,
                "declared": str(declared[kind]),
                "best": str(simplest),
                "alike": "; ".join(sorted({str(one) for one in alike} - {str(simplest)})),
                "verdict": DIFFERS if means[0] >= max(LEAST, widths[0]) else AS_DECLARED,
            }
        )
    return found
