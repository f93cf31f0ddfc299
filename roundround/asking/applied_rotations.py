"""Compares the rotation that each attention layer of a loaded model applies with the one that the config declares.

The config of a Hugging Face model is config.json; the config of a run is part of its run.json.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

from roundround.config.build import build
from roundround.hf.checkpoint import SCALED, encoding_node
from roundround.hf.patching.attention import (
    NAME,
    ModelKeys,
    attention_layers,
    installed,
    mask,
    size_of_head,
    text_decoder,
)
from roundround.kernels.keys import AttentionShape
from roundround.model.block import Block
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding
from roundround.pe.scaled import FollowsLength, ScaledRoPE
from roundround.probing.conformance import DIFFERS
from roundround.probing.layout import PAIRINGS
from roundround.probing.rotations import UNKNOWN, LayerSeen, Readings, Scheme, Turning, scheme_of, see_layers
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError, one_line
from roundround.trained.models import TrainedRun
from roundround.trained.patterns import kinds_of, parts_of

FARTHEST = 2**24  # float32 cannot hold every larger integer; a window as long as this counts as no window
FAMILIES = {  # which channels rotate together in transformers, by model_type
    "half-split": (
        *("llama", "mistral", "gemma", "gemma2", "gemma3_text", "gemma4_text", "qwen2", "qwen3", "smollm3", "olmo2"),
        *("olmo3", "gpt_neox", "phi3", "gpt_oss"),
    ),
    "interleaved": ("cohere", "cohere2", "glm", "glm4", "llama4_text", "ernie4_5", "deepseek_v2"),
}
OF_POSITIONS = re.compile("rope|rotar|posit|theta|alibi|window|chunk|yarn|ntk")  # keys of config.json about positions
AS_DECLARED, NOT_COMPARED = "as declared", "not compared"  # verdicts on a layer; DIFFERS is the third


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a config says about a layer; a field is None if the config leaves it out or says it in an unknown form.

    number: the number of the layer. encoding: the declared encoding, made with the sizes of the layer. words: the
    declaration in words if no encoding of this project can express it. window: the length of the sliding window in
    tokens. chunk: the length of a chunk in tokens. pairing: which channels form a pair, one of PAIRINGS. norm: whether
    queries and keys are normalised. odd: the reason why texts of one token do not show the whole effect of the
    encoding; empty if texts of one token show it.
    """

    number: int
    encoding: PositionalEncoding | None
    words: str = ""
    window: int | None = None
    chunk: int | None = None
    pairing: str | None = None
    norm: bool | None = None
    odd: str = ""

    @property
    def scheme(self) -> Scheme:
        """The declared encoding as a `Scheme`, with the name of the encoding's module, which is an option of `pe=`."""
        if self.encoding is None:
            return Scheme(name=self.words or "nothing")
        name = "none" if isinstance(self.encoding, NoPE) else type(self.encoding).__module__.rpartition(".")[2]
        base = self.encoding.theta if isinstance(self.encoding, RotaryEncoding) else None
        return Scheme(name=name, base=base, factor=getattr(self.encoding, "factor", None))

    def frequencies_P(self, farthest: int) -> Tensor | None:
        """The declared rotation of each channel pair, in radians per token; None if the config does not determine it.

        farthest: the last position of the text; the rotation can depend on it.
        """
        if isinstance(self.encoding, FollowsLength):
            return self.encoding.frequencies_at(farthest + 1, torch.float64, "cpu")
        if isinstance(self.encoding, RotaryEncoding):
            return self.encoding.frequencies(torch.float64).detach()
        base, encoding = PositionalEncoding, self.encoding
        if encoding is None or type(encoding).rotate_queries is not base.rotate_queries:
            return None
        # if an encoding changes the embeddings, the input of a layer depends on the positions
        return None if type(encoding).embed is not base.embed else torch.zeros(1, dtype=torch.float64)

    def is_applied(self, turning: Turning) -> bool:
        frequencies_P = self.frequencies_P(turning.farthest)
        return frequencies_P is not None and not turning.odd and turning.rotates_at(frequencies_P)


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """What was measured in one layer, and what the config declares for this layer.

    window: the measured length of the sliding window in tokens. chunk: the measured length of a chunk in tokens.
    """

    readings: Readings
    seen: LayerSeen
    window: int | None
    chunk: int | None
    declared: Declared

    @property
    def turning(self) -> Turning:
        return self.readings.far

    @property
    def scheme(self) -> Scheme:
        """The scheme that the layer applies: the declared one if the measurements agree, else an inferred one."""
        declared = self.declared.scheme
        by_other_numbers = declared.name in ("rope_random", "rope_ladder")  # what they apply is RoPE or p-RoPE
        rotary = isinstance(self.declared.encoding, RotaryEncoding) and not by_other_numbers
        return declared if rotary and self.rotates_alike and self.factor_is_alike else scheme_of(self.readings)

    @property
    def rotates_alike(self) -> bool:
        """Whether the layer rotates at the declared frequencies in texts of all three measured lengths."""
        seen = self.readings
        return all(map(self.declared.is_applied, (seen.within, seen.beyond, seen.far)))

    @property
    def factor_is_alike(self) -> bool:
        """Whether the layer has the declared attention factor; True if one of the two factors is unknown."""
        encoding, factor = self.declared.encoding, self.seen.factor
        if not isinstance(encoding, RotaryEncoding) or factor is None or not self.turning.n_rotated:
            return True
        return abs(factor / encoding.attention_factor - 1) < self.turning.noise

    @property
    def n_slow(self) -> int:
        """The number of channel pairs that rotate as declared, but so slowly that no rotation could be measured."""
        frequencies_P = self.declared.frequencies_P(self.turning.farthest)
        if frequencies_P is None or not self.declared.is_applied(self.turning):
            return 0
        return max(0, int(torch.count_nonzero(frequencies_P)) - self.turning.n_rotated)

    @property
    def not_compared(self) -> str:
        """Why the rotation could not be compared with the declared one; empty if it was compared."""
        if self.declared.frequencies_P(self.turning.farthest) is None:
            said = f"the config says {self.declared.scheme.name}"
            return "; ".join([said, *([self.scheme.why] if self.scheme.why else [])])
        return "the attention factor is unknown" if self.turning.n_rotated and self.seen.factor is None else ""

    @property
    def verdict(self) -> str:
        return DIFFERS if self.differences() else NOT_COMPARED if self.not_compared else AS_DECLARED

    def differences(self) -> list[str]:
        """Each difference between what the layer does and what the config declares, as a phrase."""
        found, turning, declared = [], self.turning, self.declared
        scheme, said = self.scheme, declared.scheme
        known = declared.frequencies_P(turning.farthest) is not None
        if known and scheme.name == UNKNOWN:
            found.append(f"{UNKNOWN} ({scheme.why}), declared: {named(said)}")
        elif known:
            if not self.factor_is_alike:
                own = getattr(declared.encoding, "attention_factor", 1.0)
                found.append(f"attention factor {self.seen.factor:.4g}, declared: {own:.4g}")
            if not self.rotates_alike:
                found.append(f"rotates as {named(scheme)}, declared: {named(said)}")
        if scheme.name != UNKNOWN and declared.pairing is not None and turning.pairing not in (None, declared.pairing):
            found.append(f"pairs channels {turning.pairing}, declared: {declared.pairing}")
        if scheme.name != UNKNOWN and bool((turning.frequencies_P < 0).any()):
            found.append("rotates clockwise")
        for name in ("window", "chunk"):
            own, other = getattr(self, name), getattr(declared, name)
            if own != other:
                found.append(f"{name} of {tokens(own)}, declared: {tokens(other)}")
        if declared.norm is not None and self.seen.factor is not None and declared.norm != (self.seen.norm is not None):
            applied, said_so = ("not ", "") if declared.norm else ("", "not ")
            found.append(f"queries are {applied}normalised, declared: {said_so}normalised")
        return found


def named(scheme: Scheme) -> str:
    """The name and the numbers of a scheme, as text."""
    base = "" if scheme.base is None else f", base {scheme.base:,.10g}"
    return scheme.name + base + ("" if scheme.factor is None else f", factor {scheme.factor:.4g}")


def tokens(n: int | None) -> str:
    return "none" if n is None else f"{n:,} tokens"


def reports_of(
    attentions: Sequence[nn.Module],
    normalisers: Sequence[AttentionSoftmax],
    forward: Callable[[Tensor, Tensor], Any],
    declared: Sequence[Declared],
    *,
    n_vocab: int,
    trained: int,
    longest: int,
    limit: int | None = None,
) -> list[LayerReport]:
    """A report of each layer, from three passes: at positions within the trained length, beyond it, and far beyond it.

    The rotation is measured in each pass, everything else in the last. Among the schemes that could explain a rotation,
    those with the declared base are tried first. longest: the length in tokens of the longest text that the config
    allows. limit: the number of positions in the model's table of positions; None if the model has no such table.
    """
    # frequencies that depend on the length have changed at 4 times the trained length; by 2^18 slow pairs have turned
    last = [trained - 1, 4 * trained - 1, min(FARTHEST, max(2**18, 16 * longest))]
    passes = [
        see_layers(attentions, normalisers, forward, n_vocab=n_vocab, farthest=farthest if limit is None else limit - 1)
        for farthest in last
    ]
    if any(len(seen) != len(attentions) for seen in passes):
        raise UserError(
            "some layers do not call their attention exactly once in a forward pass; roundround cannot measure them"
        )
    reports = []
    for said, *layer in zip(declared, *passes, strict=True):
        within, beyond, far = (replace(one.turning, odd=said.odd) if said.odd else one.turning for one in layer)
        seen, bases = layer[-1], [] if said.scheme.base is None else [said.scheme.base]
        readings = Readings(
            within=within, beyond=beyond, far=far, trained=trained, attention_factor=seen.factor, bases=bases
        )
        window, chunk = (seen.keys.reach, seen.keys.own_chunk) if isinstance(seen.keys, SeenKeys) else (None, None)
        reports.append(LayerReport(readings=readings, seen=seen, window=window, chunk=chunk, declared=said))
    return reports


# -- a Hugging Face model, and config.json


@dataclass(frozen=True, kw_only=True)
class SeenKeys(ModelKeys):
    """Keys, with the limit that the model's own mask sets for a query: a sliding window or a chunk.

    reach: the length of the window in tokens, the query included; None if the mask has no window. own_chunk: the length
    of a chunk in tokens; None if the mask has no chunks.
    """

    reach: int | None
    own_chunk: int | None


def measured_mask(
    *, mask_function: Callable[..., Any], device: torch.device | str = "cpu", **options: Any
) -> ModelKeys:
    """Return the keys from the function `mask`, with the length of the window or chunk added.

    Calls of `mask_function` show this length.
    """
    keys = mask(mask_function=mask_function, device=device, **options)

    def sees(q: int, k: int) -> bool:
        batch, query, key = (torch.tensor(n, device=device) for n in (0, q, k))
        return bool(mask_function(batch, batch, query, key))

    def queries_that_see(k: int) -> int | None:
        n = bisect_left(range(FARTHEST), True, key=lambda distance: not sees(k + distance, k))
        return None if n == FARTHEST else n

    first, second = queries_that_see(0), queries_that_see(1)
    is_chunk = first != second  # a window is equally wide at every key; in a chunk one query less sees the second key
    return SeenKeys(**vars(keys), reach=None if is_chunk else first, own_chunk=first if is_chunk else None)


def check_pretrained(model: PreTrainedModel) -> list[LayerReport]:
    """A report of every attention layer of a model. Raises UserError if the layers cannot be measured."""
    layers, decoder = attention_layers(model), text_decoder(model)
    weight = model.get_input_embeddings().weight
    device = torch.device("cpu") if weight.device.type == "meta" else weight.device
    config = model.config.get_text_config()
    longest = int(getattr(config, "max_position_embeddings", None) or 2048)
    ropes = [rope_of(config, layer) or {} for layer in range(config.num_hidden_layers)]
    trained = min([longest, *(int(rope.get("original_max_position_embeddings") or longest) for rope in ropes)])
    declared = [declared_by(config, int(layer.layer_idx), size_of_head(layer), longest) for layer in layers]  # type: ignore[arg-type]

    def forward(tokens_B1: Tensor, pos_B1: Tensor) -> Any:
        return decoder(input_ids=tokens_B1.to(device), position_ids=pos_B1.to(device), use_cache=False)

    with installed(model) as normalisers:
        AttentionMaskInterface.register(NAME, measured_mask)
        try:
            return reports_of(
                layers, normalisers, forward, declared, n_vocab=len(weight), trained=trained, longest=longest
            )
        except (IndexError, TypeError) as error:
            raise UserError(
                f"{type(model).__name__} does not accept tokens at arbitrary positions ({one_line(error)[:80]}; some "
                "models have a table of limited length); roundround cannot measure its layers"
            ) from error
        finally:
            AttentionMaskInterface.register(NAME, mask)


def rope_of(config: Any, layer: int) -> Mapping[str, Any] | None:
    """The `rope_parameters` of config.json that hold for a layer; None if they give no base (`rope_theta`).

    Some models have `rope_parameters` for each kind of layer.
    """
    kinds, rope = getattr(config, "layer_types", None), getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not rope:
        return None
    own = rope.get(kinds[layer], rope) if kinds else rope
    return own if isinstance(own, Mapping) and "rope_theta" in own else None


def declared_by(config: Any, layer: int, head_dim: int, longest: int) -> Declared:
    """What config.json declares for a layer. longest: the length in tokens of the longest text that is allowed."""
    of_rope = getattr(config, "position_embedding_type", "rope") == "rope"
    rope = rope_of(config, layer) if of_rope else None
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds else "sliding_attention"  # without named kinds a window holds for all layers
    uses_rope = getattr(config, "no_rope_layers", None)
    rotate_in_windows = config.model_type in ("cohere2", "cohere2_moe", "exaone4")
    if uses_rope is None and kinds and rotate_in_windows and getattr(config, "sliding_window", None):
        uses_rope = [one != "full_attention" for one in kinds]
    latent = getattr(config, "qk_rope_head_dim", None)
    if latent and rope is not None:  # latent attention rotates these channels, and all of them
        head_dim, share = latent, {} if rope.get("rope_type") == "proportional" else {"partial_rotary_factor": 1.0}
        rope = {**rope, **share}
    encoding, words, width = None, "", head_dim
    if rope is not None:
        try:
            if rope.get("rope_type") in SCALED:  # only the channels that rotate are scaled
                width = 2 * kept_pairs(float(rope.get("partial_rotary_factor", 1.0)), head_dim)
                rope = {**rope, "partial_rotary_factor": 1.0}
            if rope.get("rope_type") == "dynamic" and rope.get("alpha"):  # a larger base, the same for all lengths
                grown = rope["alpha"] ** (width / (width - 2))
                rope = {"rope_type": "default", "rope_theta": rope["rope_theta"] * grown}
            node = OmegaConf.create({"pe": encoding_node(rope, width, longest)}).pe
            if uses_rope and not uses_rope[layer]:  # 1 for a layer that uses RoPE
                node = OmegaConf.create({"pe": {"_target_": f"{NoPE.__module__}.{NoPE.__qualname__}"}}).pe
            shape = AttentionShape(
                n_heads=1, n_key_heads=1, head_dim=width, d_model=width, layer=layer, train_length=longest
            )
            encoding = build(node, PositionalEncoding, shape)
        except (UserError, ValueError):
            words = f"rope_type {rope.get('rope_type')}"
    flags = [
        bool(getattr(config, name))
        for name in ("use_qk_norm", "qk_layernorm")
        if getattr(config, name, None) is not None
    ]
    pairing = next((name for name, families in FAMILIES.items() if config.model_type in families), None)
    if getattr(config, "rope_interleave", None) is not None:
        pairing = PAIRINGS[config.rope_interleave]
    windowed = "sliding" in kind and getattr(config, "use_sliding_window", True) is not False
    return Declared(
        number=layer,
        encoding=encoding,
        words=words,
        window=getattr(config, "sliding_window", None) if windowed else None,
        chunk=getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None,
        pairing=pairing,
        norm=None if not flags or isinstance(encoding, NoPE) else flags[0],  # Llama 4 normalises if it rotates
    )


def unread_keys(said: Mapping[str, Any], model: PreTrainedModel) -> list[str]:
    """The keys of config.json that concern positions and are not read by any code, each as a path with dots.

    A key counts as read if the class of the config has it, or if its name occurs in the code of the config, of the
    model's modules or of the model's kind of RoPE. But a key with a number counts as unread if `rope_parameters` has
    the same key, and never with the same number. said: the contents of config.json.
    """
    config, rope = model.config.get_text_config(), RotaryEmbeddingConfigMixin
    own = ("transformers.models.", "transformers_modules.")  # packages with the code of single families of models
    in_force = leaves(config.to_dict(), config.model_type)
    kinds = [value for path, value in in_force if path[-1] == "rope_type"]
    readers = {
        *(inspect.getmodule(of) for of in {type(config), *map(type, model.modules())} if of.__module__.startswith(own)),
        *(rope.convert_rope_params_to_dict, rope.standardize_rope_params),  # which move keys into `rope_parameters`
        *(function for kind, function in ROPE_INIT_FUNCTIONS.items() if kind in kinds),
    }
    code = "".join(map(inspect.getsource, readers))
    found = []
    for path, value in leaves(said, config.model_type):
        taken = [own for where, own in in_force if "rope_parameters" in where and where[-1] == path[-1]]
        other = isinstance(value, int | float) and bool(taken) and value not in taken
        named = path[-1] in dir(type(config)) or re.search(rf"""(["'.]){re.escape(path[-1])}\b""", code)
        if value is not None and OF_POSITIONS.search(".".join(path)) and (other or not named):
            found.append(".".join(path))
    return found


def leaves(said: Mapping[str, Any], kind: str, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """The values in a config, each with the keys that lead to it. Parts whose model_type is not `kind` are left out."""
    return [
        leaf
        for name, value in said.items()
        if not isinstance(value, Mapping) or value.get("model_type", kind) == kind
        for leaf in (
            leaves(value, kind, (*path, str(name))) if isinstance(value, Mapping) else [((*path, str(name)), value)]
        )
    ]


# -- a run, and the config in run.json


def check_run(trained: TrainedRun, checkpoint: str, device: torch.device) -> list[LayerReport]:
    """A report of every attention layer of a run's decoder."""
    decoder = trained.decoder(checkpoint).requires_grad_(False).to(device)
    normalisers, blocks = decoder.normalisers, cast("list[Block]", list(decoder.layers))
    if not normalisers:
        raise UserError(f"{trained.directory} has no layer of attention, so no layer rotates queries and keys")
    attentions = {softmax.shape.layer: blocks[softmax.shape.layer].self_attn for softmax in normalisers}
    encodings = {number: decoder.all_encodings[decoder.encoding_of_layer[number]] for number in attentions}
    longest = normalisers[0].shape.train_length
    length = min([longest, *(e.original_length for e in encodings.values() if isinstance(e, ScaledRoPE))])

    def forward(tokens_B1: Tensor, pos_B1: Tensor) -> Any:
        return decoder.hidden(tokens_B1.to(device), pos_BT=pos_B1.to(device))

    declared_kinds = kinds_of(int(trained.config.model.n_layers), **parts_of(trained.config))
    declared = []
    for number, attention in attentions.items():
        kind, own = declared_kinds[number % len(declared_kinds)], type(encodings[number])
        encoding = kind.make_encoding(attention.encoding_shape)
        encoding.load_state_dict(encodings[number].state_dict(), strict=False)  # frequencies may be learned
        plain = own.rotate_queries is PositionalEncoding.rotate_queries or issubclass(own, RotaryEncoding)
        said = Declared(
            number=number,
            encoding=encoding,
            window=kind.window,
            chunk=kind.chunk,
            pairing=PAIRINGS[0],
            norm=kind.make_qk_norm is not None,
            odd="" if plain else f"{own.__name__} does more than single tokens show",
        )
        declared.append(said)
    reports = reports_of(
        list(attentions.values()),
        normalisers,
        forward,
        declared,
        n_vocab=decoder.embed_tokens.num_embeddings,
        trained=length,
        longest=longest,
        limit=decoder.longest(),
    )
    kinds = [decoder.kinds[number] for number in attentions]
    return [replace(report, window=k.window, chunk=k.chunk) for report, k in zip(reports, kinds, strict=True)]
