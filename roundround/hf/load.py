"""A Hugging Face model: how it is loaded with its tokenizer, and how probes use it.

Shapes: B batch, T tokens, D model width, V vocabulary.

Tested by tests/hf/test_hf_load.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import torch
from huggingface_hub import errors as hub
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file

from roundround.data.hub import hub_is_reachable
from roundround.data.tokenizers import Vocabulary, vocabulary_of
from roundround.distributed.device import check_fits
from roundround.hf.checkpoint import INDEX, WEIGHTS, causal_masks, quiet, some_of, weight_files
from roundround.hf.patching.attention import normalisers_of, other_layers, text_decoder
from roundround.hf.patching.frequencies import (
    Rotation,
    follows_length,
    placed_rotations,
    replace_rotations,
    rotary_tables,
)
from roundround.model.scoring import nats_of
from roundround.probing.probed_model import FixedFrequencies, ProbedModel, follow_length, tables_of
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import home_expanded
from roundround.support.packaged import model_path

LOGITS_AT_ONCE = 2**27  # half a GiB of float32
DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@final
class Pretrained:
    """A decoder on the Hugging Face hub, in its cache, or in a folder.

    path: the folder, the name on the hub, or `package:NAME` for a model inside the package. revision: a branch, tag or
    commit; null for the newest. dtype: the type of the weights; `auto` is the checkpoint's type, but float32 instead of
    float16 on a CPU, where float16 is slow and rounds. offload: whether to leave the weights on disk and load them
    layer by layer, for models larger than memory. trust_remote_code: whether to run Python code that comes with the
    model. pickled: whether to read weights that are not safetensors; such files can run code too. default_data: the
    option of `data=` that a verb uses with this model if none is given; null for the verb's own default.
    special_tokens: the way to read text that spells a special token such as `<unk>`: `read` makes it that token, as
    transformers' `tokenizer(text)` does; `plain` makes it ordinary characters.
    """

    def __init__(
        self,
        *,
        path: str | None,
        revision: str | None,
        dtype: str,
        offload: bool,
        trust_remote_code: bool,
        pickled: bool,
        default_data: str | None = None,
        special_tokens: str = "read",
    ) -> None:
        if path is None:
            raise ValueError("path has no value; give model.path=DIR, or the name of a model on the hub")
        for name, value, allowed in (("dtype", dtype, DTYPES), ("special_tokens", special_tokens, ("read", "plain"))):
            if value not in allowed:
                raise ValueError(f"{name}={value} must be one of {', '.join(allowed)}")
        path = model_path(path)
        folder = home_expanded(path, "the model")
        self.is_folder = folder.is_dir()
        self.path = str(folder) if self.is_folder else path
        self.revision, self.dtype, self.offload = revision, dtype, offload
        self.trust_remote_code, self.pickled, self.default_data = trust_remote_code, pickled, default_data
        self.special_tokens = special_tokens

    def load(self, device: torch.device) -> tuple[PreTrainedModel, Any]:
        """The model, ready to evaluate, and its tokenizer. Raises UserError if they cannot be loaded."""
        if self.offload and device.type != "cpu":
            raise UserError(f"model.offload=true runs on the CPU, not on {device}; give device=cpu")
        with quiet():
            model, tokenizer = self.read(device)
        model.eval().requires_grad_(False)
        kept = str(model.dtype).removeprefix("torch.")
        if self.dtype == "auto" and model.dtype == torch.float16 and device.type == "cpu" and not self.offload:
            model = model.float()
        if self.dtype == "auto" and kept != "float32":
            name = str(model.dtype).removeprefix("torch.")
            print_status(f"weights stored in {kept} are computed in {name}; model.dtype= can be {', '.join(DTYPES)}")
        return (model if self.offload else model.to(device)), tokenizer

    def read(self, device: torch.device) -> tuple[PreTrainedModel, Any]:
        """The model and its tokenizer. Raises UserError if weights do not fit the model, or if a library raises."""
        try:
            files = self.safetensors()
            if not self.offload:
                check_fits(
                    sum(file.stat().st_size for file in files),
                    device,
                    self.path,
                    "give model.offload=true, which leaves the weights on disk",
                )
            options: dict[str, Any] = {"dtype": DTYPES[self.dtype], "use_safetensors": None if self.pickled else True}
            if self.offload:
                options["device_map"] = {"": "disk"}
                # accelerate would warn of the offloading, which the user asked for
                logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)
            model, found = AutoModelForCausalLM.from_pretrained(
                self.path, output_loading_info=True, **self.options(), **options
            )
            tokenizer = AutoTokenizer.from_pretrained(self.path, **self.options())
        except UserError:
            raise
        except Exception as error:  # OSError, ValueError, SafetensorError, UnpicklingError, a config's own, ...
            text = " ".join(str(error).split())
            explanations = [
                (
                    "trust_remote_code" in text,
                    "the model comes with Python code of its own, which is run only if you trust it: read the code, "
                    "then give model.trust_remote_code=true",
                ),
                (
                    isinstance(error, hub.GatedRepoError) or "gated repo" in text or "401 Client Error" in text,
                    "the model is gated, or does not exist: accept its licence on the hub and set HF_TOKEN, or give a "
                    "local folder with model.path=DIR",
                ),
                (
                    not self.is_folder and not hub_is_reachable(),
                    "the model is not in the cache and the Hugging Face hub cannot be reached; give a local folder "
                    "with model.path=DIR, or fill the cache (HF_HOME) on a machine with a network; for a gated model, "
                    "also accept its licence on the hub and set HF_TOKEN",
                ),
                (
                    "no file named" in text or isinstance(error, hub.RepositoryNotFoundError),
                    f"no such model, or no safetensors weights ({text[:160]}); model.pickled=true reads pickled "
                    "weights, which can run code",
                ),
            ]
            words = next((line for applies, line in explanations if applies), text[:240])
            raise UserError(f"{self.path}: {words}") from error
        if found["missing_keys"]:
            raise UserError(f"{self.path} lacks weights of its model: {some_of(sorted(found['missing_keys']))}")
        unexpected = set(found["unexpected_keys"])  # without old tables such as inv_freq, which transformers omits
        names = sorted(unexpected - causal_masks(self.safetensors())) if unexpected else []
        if names:
            raise UserError(
                f"{self.path} has weights that {type(model).__name__} does not have: {some_of(names)}; "
                "to ignore them, load the model in Python and give it to rr.probe"
            )
        return model, tokenizer

    def config_file(self) -> Path:
        return Path(str(cached_file(self.path, "config.json", **self.options())))

    def safetensors(self) -> list[Path]:
        """The safetensors files on this machine: none before the download, and none if the weights are pickled."""
        folder = self.config_file().parent
        return weight_files(folder) if any((folder / name).is_file() for name in (WEIGHTS, INDEX)) else []

    def options(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "local_files_only": self.is_folder or not hub_is_reachable(),
        }


@final
class ProbedHuggingFaceModel(ProbedModel):
    """A loaded model and its tokenizer. `attention.installed` runs the model's attention through normalisers.

    Every text begins with the beginning-of-sequence token if the tokenizer adds one by default. Text that spells a
    special token is read as that token, as in transformers, unless `reads_special_tokens` is False or the tokenizer
    splits special tokens.
    """

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: Any, *, reads_special_tokens: bool = True) -> None:
        normalisers = normalisers_of(model)
        first_token = None if tokenizer is None else tokenizer.bos_token_id
        if first_token is not None and tokenizer("a").input_ids[:1] != [first_token]:
            first_token = None  # the tokenizer does not add it by default
        super().__init__(name, model, normalisers, first_token)
        self.pretrained, self.tokenizer, self.decoder = model, tokenizer, text_decoder(model)
        placed = [getattr(module, slot) for module, slot in placed_rotations(model)]
        self.follows_length = follows_length(model) is not None or follow_length(placed)
        ends = None if model.generation_config is None else model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        self.reads_special_tokens = reads_special_tokens and not getattr(tokenizer, "split_special_tokens", False)

    @property
    def device(self) -> torch.device:
        device = self.pretrained.get_input_embeddings().weight.device
        return torch.device("cpu") if device.type == "meta" else device

    def tables(self) -> list[Tensor]:
        own = [table.within_context_P.detach().double().cpu() for table in rotary_tables(self.pretrained)]
        return own + tables_of([getattr(module, slot) for module, slot in placed_rotations(self.pretrained)])

    @property
    def theta(self) -> float | list[float]:
        bases = list(dict.fromkeys(table.theta for table in rotary_tables(self.pretrained)))
        return bases if len(bases) > 1 else next(iter(bases), 10_000.0)

    def windows(self) -> list[int | None]:
        config = self.pretrained.config.get_text_config()
        limits = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}
        kinds = getattr(config, "layer_types", None)
        found = []
        for number in self.layers:  # without named kinds a window holds for all layers
            kind = kinds[number] if kinds else "sliding"
            found.append(next((getattr(config, key, None) for word, key in limits.items() if word in kind), None))
        both = [[w for w in (own, s.window) if w is not None] for own, s in zip(found, self.normalisers, strict=True)]
        return [min(windows, default=None) for windows in both]

    def kinds(self) -> list[str]:
        config = self.pretrained.config.get_text_config()
        types = getattr(config, "layer_types", None) or ["full"] * (1 + max(self.layers))
        rotates = getattr(config, "no_rope_layers", None) or [1] * len(types)  # 1 where RoPE is used
        names = [types[n].removesuffix("_attention") + ("" if rotates[n] else " nope") for n in self.layers]
        return names if len(set(names)) > 1 else []

    def others(self) -> dict[int, str]:
        return other_layers(self.pretrained)

    def text_tokens(self, text: str, *, first: bool = False) -> list[int]:
        plain = not self.reads_special_tokens
        return list(self.tokenizer(text, add_special_tokens=first, split_special_tokens=plain).input_ids)

    def tokens(self, text: str) -> list[int]:
        ids, own = self.text_tokens(text, first=True), self.text_tokens(text)
        if ids[:2] == 2 * [self.tokenizer.bos_token_id]:
            ids = ids[1:]  # the text itself spells the token that the tokenizer puts in front of it
        ends = len(ids) > 1 and ids[-1] in self.ends and own[-1:] != ids[-1:]
        return ids[:-1] if ends else ids  # some tokenizers add a token at the end

    @property
    def unknown_token(self) -> int | None:
        own = self.tokenizer  # in some tokenizers one token has several purposes
        return None if own.unk_token_id in (own.bos_token_id, own.eos_token_id, own.pad_token_id) else own.unk_token_id

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary.

        A document ends with the token that begins every text. If there is no such token, a document ends with EOS.
        """
        return vocabulary_of(
            self.tokenizer, self.name, self.first_token, reads_special_tokens=self.reads_special_tokens
        )

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        hidden_BTD: Tensor = self.decoded(tokens_BT, pos_BT).last_hidden_state
        return hidden_BTD

    def decoded(self, tokens_BT: Tensor, pos_BT: Tensor) -> Any:
        """What the decoder returns for tokens at these positions."""
        try:
            return self.decoder(input_ids=tokens_BT, position_ids=pos_BT.expand_as(tokens_BT), use_cache=False)
        except IndexError as error:  # raised by a table of learned positions
            raise UserError(f"{self.name} has too few positions for {tokens_BT.shape[1]:,} tokens: {error}") from error

    def token_loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return torch.cat([nats_of(logits, targets_BT[:, rows]) for rows, logits in self.logits(tokens_BT)], 1)

    def logits(self, tokens_BT: Tensor, first: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Yields (a slice of n tokens, the logits [B, n, V] of these tokens), from the token `first` on.

        The number n is as large as memory allows.
        """
        n_vocab = self.pretrained.get_input_embeddings().num_embeddings
        at_once = max(1, LOGITS_AT_ONCE // (n_vocab * len(tokens_BT)))
        decoded = self.decoded(tokens_BT, torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None])
        for a in range(first, tokens_BT.shape[1], at_once):
            columns = slice(a, a + at_once)
            yield columns, self.head(tokens_BT, decoded, columns)

    def head(self, tokens_BT: Tensor, decoded: Any, rows: slice) -> Tensor:
        """Logits [B, n, V] of the n tokens in the slice `rows`.

        The model's head, scales and caps compute them from `decoded`, so the decoder does not run again. The logits of
        all tokens of a long text might not fit into memory.
        """
        of_rows = type(decoded)(**{**decoded, "last_hidden_state": decoded.last_hidden_state[:, rows]})
        own = self.decoder.__dict__.get("forward")  # offloading stores a forward of its own there
        self.decoder.__dict__["forward"] = lambda *args, **options: of_rows
        try:
            logits_BTV: Tensor = self.pretrained(input_ids=tokens_BT[:, rows], use_cache=False).logits
        finally:
            del self.decoder.__dict__["forward"]
            if own is not None:
                self.decoder.__dict__["forward"] = own
        return logits_BTV

    @contextmanager
    def with_frequencies(self, tables: Sequence[Tensor]) -> Iterator[None]:
        factors = [table.rotation().factor for table in rotary_tables(self.pretrained)]
        new = [Rotation(*one) for one in zip(tables, factors, strict=False)]
        with ExitStack() as undo:
            undo.callback(replace_rotations, self.pretrained, replace_rotations(self.pretrained, new))
            for (module, slot), table in zip(placed_rotations(self.pretrained), tables[len(factors) :], strict=True):
                encoding = getattr(module, slot)
                undo.callback(setattr, module, slot, encoding)
                setattr(module, slot, FixedFrequencies(encoding, table))
            yield


def as_pretrained_model(model: object) -> PreTrainedModel:
    """The model itself. Raises UserError if it is not a Hugging Face model."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            "the model must be a loaded Hugging Face decoder, the model that rr.load returns or, for rr.attention and "
            f"rr.probe, one that calls rr.attend, not a {type(model).__name__}"
        )
    return model
