"""What a probe measures: a decoder whose attention layers call normalisers of this project.

Shapes: B batch, T tokens, D model width.

Tested by tests/probing/test_probe.py, tests/model/test_parts.py and tests/hf/test_hf_patch.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, final

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from roundround.data.tokenizers import unknown_token
from roundround.kernels.bias import Bias
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.probing.layout import is_said_by_frequencies
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError


class ObservedModel(ABC):
    """A decoder with its tokenizer, as far as `observe` and `rr.attention` read it.

    name: the name in tables and figures. model: the module. normalisers: the normaliser of each attention layer.
    first_token: the token before every text (beginning of sequence); None if the model has none. layers: the index of
    each attention layer among all layers; in a hybrid model other layers lie between them. follows_length: whether the
    frequencies change with the length of the text. draws: whether the model draws the positions of a text at random;
    all tokens of the text determine the draw.
    """

    follows_length = False
    draws = False

    def __init__(
        self, name: str, model: nn.Module, normalisers: list[AttentionSoftmax], first_token: int | None
    ) -> None:
        self.name, self.model, self.normalisers, self.first_token = name, model, normalisers, first_token
        self.layers = [softmax.shape.layer for softmax in normalisers]

    @property
    def longest(self) -> int:
        """The longest context in tokens that the model was trained on."""
        return self.normalisers[0].shape.train_length

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device for inputs."""

    @abstractmethod
    def tables(self) -> list[Tensor]:
        """The model's tables of frequencies in radians per token; each layer uses one table, or does not rotate.

        Another encoding has a table of zeros, or none.
        """

    @abstractmethod
    def windows(self) -> list[int | None]:
        """For each layer, the largest number of tokens that a query sees, the query's own included; None if all."""

    def kinds(self) -> list[str]:
        """The name of each layer's kind, such as local; empty if all layers are alike."""
        return []

    def others(self) -> dict[int, str]:
        """The kind of each layer without attention, such as `conv`, by its number among all layers."""
        return {}

    @abstractmethod
    def text_tokens(self, text: str) -> list[int]:
        """Token ids of a text, without any special token."""

    @property
    def unknown_token(self) -> int | None:
        """The id that the tokenizer gives to text that it cannot read; None if the tokenizer has no such id."""
        return None

    @abstractmethod
    def words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""

    @abstractmethod
    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        """What the layers make of tokens at the positions `pos_BT`, [B, T, D]: the output of the last layer."""

    def positions(self, tokens: Sequence[int]) -> Tensor:
        """The positions of the tokens of a text, [T]. If the model draws positions, its first draw gives them."""
        return torch.arange(len(tokens))

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text, with `first_token` in front unless the text begins with this token already."""
        first = [] if self.first_token is None else [self.first_token]
        tokens = self.text_tokens(text)
        return tokens if tokens[:1] == first else first + tokens


class ProbedModel(ObservedModel):
    """A model that also has a loss and takes other frequencies: what `roundround probe` and `eval` need."""

    @property
    @abstractmethod
    def theta(self) -> float | list[float]:
        """The base of the model's own RoPE; a list if kinds of layers have different bases."""

    @abstractmethod
    def token_loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss of each target in nats, [B, T], float32."""

    @abstractmethod
    def with_frequencies(self, tables: Sequence[Tensor]) -> AbstractContextManager[None]:
        """A context in which the model rotates at the given frequencies instead of the frequencies of `tables()`."""


@final
class ProbedParts(ObservedModel):
    """A model that is not of this project and calls `rr.attend`: `model(tokens_BT)` runs it, whatever that returns.

    The tokenizer has `encode(text)` and `decode(ids)`. Windows are known only of calls whose texts are longer.
    Raises UserError if two normalisers have the same number of a layer.
    """

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        normalisers = [module for module in model.modules() if isinstance(module, AttentionSoftmax)]
        normalisers.sort(key=lambda softmax: softmax.shape.layer)
        super().__init__(type(model).__name__, model, normalisers, None)
        if len(set(self.layers)) < len(self.layers):
            raise UserError(f"{self.name} has two normalisers of one layer; number them: rr.normaliser(..., layer=...)")
        self.encodings = [module for module in model.modules() if isinstance(module, PositionalEncoding)]
        self.tokenizer, self.seen_windows = tokenizer, dict[int, int | None]()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def tables(self) -> list[Tensor]:
        parts: list[PositionalEncoding | AttentionSoftmax] = [*self.encodings, *self.normalisers]
        for part in parts:
            if "train_length" not in vars(part.shape):
                raise UserError(f"{type(part).__name__} of layer {part.shape.layer} needs train_length= for a probe")
        self.follows_length = follow_length(self.encodings)
        return tables_of(self.encodings)

    def windows(self) -> list[int | None]:
        return [self.seen_windows.get(layer) for layer in self.layers]

    def text_tokens(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        return [int(token) for token in getattr(ids, "ids", ids)]

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        """The queries of the last layer, since the model may return anything, such as the logits of one token.

        The encodings get the positions that the model gives them, moved by those of the first tokens in `pos_BT`.
        Raises UserError if a layer sees later tokens, or if it does not call its normaliser once.
        """
        found: dict[int, Tensor] = {}

        def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
            layer, keys = softmax.shape.layer, options["keys"]
            if not keys.causal:
                raise UserError(f"layer {layer} of {self.name} sees later tokens; give rr.attend causal=True")
            if layer in found:
                raise UserError(f"{self.name} calls the normaliser of layer {layer} twice; make one for each layer")
            found[layer] = qkv[0].transpose(1, 2).flatten(2)
            self.seen_windows[layer] = keys.window or self.seen_windows.get(layer)

        with ExitStack() as undo:
            undo.enter_context(watching(self.normalisers, take_in))
            for encoding in self.encodings:
                own = encoding.prepare
                vars(encoding)["prepare"] = lambda own_BT, dtype, own=own: own(own_BT + pos_BT[:, :1], dtype)
                undo.callback(vars(encoding).pop, "prepare")
            self.model(tokens_BT)
        if missing := {*self.layers} - {*found}:
            raise UserError(f"layer {min(missing)} of {self.name} has a normaliser that {self.name} does not call")
        return list(found.values())[-1]


def tables_of(encodings: Sequence[PositionalEncoding]) -> list[Tensor]:
    """The frequencies of each encoding, float64; zeros if they do not describe all that it does."""
    return [
        encoding.frequencies(torch.float64)
        if isinstance(encoding, RotaryEncoding) and is_said_by_frequencies(encoding)
        else torch.zeros(encoding.shape.head_dim // 2, dtype=torch.float64)
        for encoding in encodings
    ]


def follow_length(encodings: Sequence[PositionalEncoding]) -> bool:
    """Whether the frequencies of an encoding may follow the length of the text."""
    rotary = [encoding for encoding in encodings if isinstance(encoding, RotaryEncoding)]
    return not all(map(is_said_by_frequencies, rotary))  # or it does more, which counts as the same


@final
class ProbedDecoder(ProbedModel):
    """A decoder of this project. If it reads text, the token that ends documents also serves as `first_token`."""

    def __init__(self, name: str, decoder: Decoder, tokenizer: Tokenizer, first_token: int | None) -> None:
        normalisers = decoder.normalisers
        if not normalisers:
            raise UserError(f"{name} has no layer of attention, so there are no queries and keys to probe")
        super().__init__(name, decoder, normalisers, first_token)
        self.decoder, self.tokenizer = decoder, tokenizer
        self.encodings = decoder.all_encodings  # one for all layers, one for each kind, or one for each layer
        self.draws = decoder.draws_positions
        if self.draws and len(set(decoder.leaders)) > 1:
            raise UserError(f"{name} draws positions for one kind of layers only; a probe needs the same in all layers")
        self.follows_length = follow_length(self.encodings)

    @property
    def device(self) -> torch.device:
        return self.decoder.embed_tokens.weight.device

    def tables(self) -> list[Tensor]:
        return tables_of(self.encodings)

    @property
    def theta(self) -> float | list[float]:
        bases = dict.fromkeys(encoding.theta for encoding in self.encodings if isinstance(encoding, RotaryEncoding))
        return list(bases) if len(bases) > 1 else next(iter(bases), 10_000.0)

    def windows(self) -> list[int | None]:
        return [
            min((reach for reach in (softmax.window, kind.window, kind.chunk) if reach is not None), default=None)
            for softmax, kind in ((softmax, self.decoder.kinds[softmax.shape.layer]) for softmax in self.normalisers)
        ]

    def kinds(self) -> list[str]:
        names = [self.decoder.kinds[layer].name for layer in self.layers]
        return names if len(set(names)) > 1 else []

    def others(self) -> dict[int, str]:
        return {layer: kind.name for layer, kind in enumerate(self.decoder.kinds) if layer not in self.layers}

    def text_tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def unknown_token(self) -> int | None:
        return unknown_token(self.tokenizer, self.first_token)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def positions(self, tokens: Sequence[int]) -> Tensor:
        self.check_length(len(tokens))
        [first, *_] = self.decoder.draws(torch.tensor([tokens]))
        return self.decoder.encoding.positions(torch.arange(len(tokens))[None], first)[0]

    def check_length(self, n_tokens: int) -> None:
        longest = self.decoder.longest()
        if longest is not None and n_tokens > longest:
            raise UserError(f"{self.name} has {longest} positions, and a text has {n_tokens} tokens; shorten the text")

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        return self.decoder.hidden(tokens_BT, pos_BT=pos_BT)

    def token_loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        self.check_length(tokens_BT.shape[1])
        loss_BT: Tensor = self.decoder(tokens_BT, targets_BT=targets_BT)
        return loss_BT

    @contextmanager
    def with_frequencies(self, tables: Sequence[Tensor]) -> Iterator[None]:
        own, encodings = self.decoder.encodings, self.encodings
        self.encodings = [
            FixedFrequencies(encoding, table) if isinstance(encoding, RotaryEncoding) else encoding
            for encoding, table in zip(encodings, tables, strict=True)
        ]
        self.decoder.encodings = nn.ModuleList(self.encodings)
        try:
            yield
        finally:
            self.decoder.encodings, self.encodings = own, encodings


@final
class AfterFirstToken(nn.Module):
    """Computes the loss of each token of windows from the middle of a text, [B, T] in nats. Called like a `Decoder`.

    The model reads `first_token` before each window, unless `first_token` is None.
    """

    def __init__(self, probed: ProbedModel, first_token: int | None) -> None:
        super().__init__()
        self.model = probed.model
        self.probed, self.first_token = probed, first_token

    def forward(self, tokens_BT: Tensor, *, targets_BT: Tensor) -> Tensor:
        if self.first_token is None:
            return self.probed.token_loss(tokens_BT, targets_BT)
        with_first = torch.cat([torch.full_like(tokens_BT[:, :1], self.first_token), tokens_BT], 1)
        return self.probed.token_loss(with_first, torch.cat([tokens_BT[:, :1], targets_BT], 1))[:, 1:]


class PassesOn(PositionalEncoding):
    """An encoding around another one, `own`, whose changes of logits and values stay."""

    own: PositionalEncoding

    def rotate_values(self, v_BGTC: Tensor, prepared: Any) -> Tensor:
        return self.own.rotate_values(v_BGTC, prepared)

    def rotate_outputs(self, out_BHTC: Tensor, prepared: Any) -> Tensor:
        return self.own.rotate_outputs(out_BHTC, prepared)

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias | None:
        return self.own.bias(q_BHTC, k_BGTC, prepared)


@final
class FixedFrequencies(PassesOn, RotaryEncoding):
    """An encoding `own` at given frequencies in place of its own, such as the same with a band set to zero.

    g_k = frequencies[k], at the positions of `own`

    Su et al. 2021, arXiv:2104.09864, equation 15, with the given frequencies in place of the paper's.
    """

    def __init__(self, own: PositionalEncoding, frequencies_P: Tensor) -> None:
        super().__init__(own.shape, theta=10000.0)
        self.own, self.given_P = own, frequencies_P.double().cpu()
        self.attention_factor = getattr(own, "attention_factor", 1.0)

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        return self.own.draws(tokens_BT)

    def positions(self, pos_BT: Tensor, step: Any) -> Tensor:
        return self.own.positions(pos_BT, step)

    def longest(self) -> int | None:
        return self.own.longest()

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        return self.given_P.to(device=device, dtype=dtype)


def run(probed: ObservedModel, rows: Sequence[tuple[Sequence[int], int | None]]) -> Tensor:
    """The model's output for rows of (tokens, position of the first token), [B, T, D].

    If the position is None, the model chooses the positions. Shorter rows are filled up at the end with their last
    token; in a causal model the added tokens do not change the outputs for the tokens before them.
    """
    tokens_BT = filled_up([tokens for tokens, _ in rows])
    found = []
    for tokens, first in rows:
        own_T = probed.positions(tokens) if first is None else torch.arange(first, first + len(tokens))
        filling_T = own_T[-1] + torch.arange(1, tokens_BT.shape[1] - len(tokens) + 1)
        found.append(torch.cat([own_T, filling_T]))
    return probed.hidden(tokens_BT.to(probed.device), torch.stack(found).to(probed.device))


def filled_up(texts: Sequence[Sequence[int]]) -> Tensor:
    """Tokens [B, T] of texts of several lengths, each filled up with its last token."""
    longest = max(map(len, texts))
    return torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts])


@contextmanager
def in_evaluation_mode(model: object) -> Iterator[None]:
    """Inside the block no module of the model is in training mode; afterwards each has its former mode again."""
    training = [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def watching(
    normalisers: Sequence[AttentionSoftmax],
    take_in: Callable[[AttentionSoftmax, Sequence[Tensor], dict[str, Any]], None],
) -> Iterator[None]:
    """A context in which `take_in` gets (normaliser, (q, k, v), options) before every call of a normaliser.

    options["keys"] leaves out the keys that a window of the normaliser hides.
    """

    def show(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        keys, rows = softmax.narrowed(options["keys"]), softmax.counted(options["rows"], options["keys"])
        take_in(softmax, qkv, {**options, "keys": keys, "rows": rows})

    hooks = [softmax.register_forward_pre_hook(show, with_kwargs=True) for softmax in normalisers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
