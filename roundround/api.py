"""The Python interface: `import roundround as rr`, then `rr.load`, `rr.probe`, `rr.train`, `rr.compare` and the others.

Each function imports what it needs when it is called, so importing this module does not import torch.
Shapes: L layers, H heads, Q queries, K keys, T tokens, P channel pairs, V vocabulary.

Tested by tests/test_api.py, tests/hf/test_hf_load.py and tests/hf/test_hf_patch.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, final

from pandas import DataFrame

from roundround.analysis.comparison import as_typed
from roundround.analysis.comparison import compare as compare
from roundround.analysis.past_run import Filters, PastRun, directories_of, directories_of_all, past_run, runs_in
from roundround.support.console import print_status
from roundround.support.errors import AlreadyReported, Interrupted, UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from roundround.data.corpora import Corpus
    from roundround.data.tokenizers import Vocabulary
    from roundround.hf.patching.patch import Patch
    from roundround.kernels.keys import AttentionShape
    from roundround.model.decoder import Decoder
    from roundround.model.parts import Normaliser
    from roundround.pe.base import PositionalEncoding
    from roundround.probing.probe import Probe
    from roundround.probing.rows import AttentionWeights
    from roundround.probing.watch import Watch
    from roundround.softmax.base import AttentionSoftmax

# -- models


class Loaded(NamedTuple):
    """The decoder of a training run, in evaluation mode on the CPU, and its tokenizer.

    `model(tokens_BT)` gives logits [B, T, V]. `tokenizer.encode(text)` gives token ids, and `tokenizer.decode(ids)`
    gives text.
    """

    model: Decoder
    tokenizer: Vocabulary


def load(
    run: str | os.PathLike[str], *, checkpoint: str = "best", outputs: str = "outputs", trust: bool = False
) -> Loaded:
    """The model and tokenizer of a training run.

    run: the result of `rr.train` or `rr.run`, a directory, or `last` for the latest finished training under `outputs`.
    checkpoint: best, last, or a step such as step-00000100. trust: whether to accept a run that uses classes from
    outside roundround; the folder of their modules, or its copy in the run (`RUN/variants`), must be on `sys.path`.
    Raises UserError if there is no such run.

        model, tokenizer = rr.load("last")
    """
    from roundround.records.directories import find_run
    from roundround.trained.models import TrainedRun

    trained = TrainedRun(find_run(os.fspath(run), outputs, "train", done=True), trust=trust)
    return Loaded(trained.decoder(checkpoint), trained.vocabulary())


def attention(model: nn.Module, tokenizer: Any, text: str) -> AttentionWeights:
    """The attention weights of every head over one text.

    model, tokenizer: the model and tokenizer from `load`, a Hugging Face decoder (patched or not) and its tokenizer, or
    your own model that calls `rr.attend`, if `model(tokens)` runs it, and anything with `encode(text)` and
    `decode(ids)`. If the model has a first token, such as <bos>, it is put before the text.

    Returns `AttentionWeights`, on the CPU and in at least float32: `weights[layer]` is [H, Q, K], and
    `weights[layer][head]` is [Q, K], with 0 where the query does not see the key. `weights.words` has the tokens as
    text. Each row sums to 1, unless the normaliser permits other sums (sigmoid, sinks). The weights are L x H x T x T
    numbers. Raises UserError if the tokenizer cannot read the text, or if the weights do not fit into memory.

        weights = rr.attention(model, tokenizer, "Once upon a time")
        weights[0][3]  # layer 0, head 3
    """
    import torch

    from roundround.asking.loaded_model import given_to_probe
    from roundround.data.tokenizers import check_known
    from roundround.probing.probed_model import run
    from roundround.probing.rows import AttentionWeights, weights_of_layers

    with given_to_probe(model, tokenizer, [text]) as probed, torch.no_grad():
        tokens = probed.tokens(text)
        check_known(tokens, probed.unknown_token, "the text")
        if not tokens:
            raise UserError("the text has no token")
        layers = weights_of_layers(probed.normalisers, lambda: run(probed, [(tokens, None)]))
        return AttentionWeights(probed.name, probed.words(tokens), tokens, layers, probed.layers)


def generate(
    model: nn.Module,
    tokenizer: Any,
    prompt: str,
    *,
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    n: int = 1,
) -> list[str]:
    """Let a model continue a prompt, as `roundround generate` does; returns the texts, each with the prompt.

    model, tokenizer: from `load`, or of Hugging Face. length: the largest number of tokens to write; the model may end
    a text earlier. temperature: the divisor of the logits; 0 always takes the likeliest token. top_k: the number of
    likeliest tokens from which each token is drawn; None for all. seed: the seed of the draws; the first text is the
    same for any `n`. n: the number of texts.
    Raises UserError for an empty prompt, a value out of range, or a model that cannot generate with a cache.

        print(rr.generate(model, tokenizer, "Once upon a time", temperature=0)[0])
    """
    from roundround.asking.generation import whole_texts
    from roundround.asking.loaded_model import given_to_write

    with given_to_write(model, tokenizer) as writer:
        return whole_texts(writer, prompt, length=length, temperature=temperature, top_k=top_k, seed=seed, n=n)


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    data: str | Corpus | Sequence[str],
    *,
    length: int | Sequence[int] = (128, 256, 512),
    stride: int | None = None,
    bos: str | bool = "auto",
    max_tokens: int | None = None,
    separate_documents: bool | None = None,
    dispersion: bool = False,
    batch_tokens: int = 8192,
) -> DataFrame:
    """Perplexity on held-out text at several context lengths: the numbers of `roundround eval`.

    model, tokenizer: from `load`, or of Hugging Face. data: the name of a corpus (`roundround list data`, such as
    pydoc), a `Corpus`, or a list of texts, which are all scored. If a run was trained on a corpus of the package, the
    corpus's name is in `rr.run(run).choices["data"]`; if it was trained on your own files, give a list of their texts.
    length: the context lengths in tokens; the targets are the same at each length. stride: the number of tokens between
    the beginnings of windows that overlap; None for windows that do not overlap. bos: whether a Hugging Face model's
    first token is put before every window: True, False, or auto (only if the token lowers the loss). max_tokens: the
    largest number of targets to score. separate_documents: whether tokens attend only within their document (give True
    if the run was trained so); None for the corpus's setting. dispersion: whether to measure the entropy (nats), the
    largest weight, the logit spread and the gap counting number of every head too. batch_tokens: the number of tokens
    in a batch.

    Returns a row for each number, with the fields of `results.json`: metric (perplexity, nats_per_token, ...), length
    and value. A loss over a range of positions also has `first_position` and `last_position`. Raises UserError if
    `data` is a task, if there is too little text, or if the encoding has too few positions for a length.

        rr.evaluate(model, tokenizer, "pydoc", length=[128, 512]).query("metric == 'perplexity'")
    """
    from roundround.asking.loaded_model import given_to_read
    from roundround.asking.reader import check_dispersion, first_tokens_of, measure
    from roundround.report.evaluation import records_of_text

    lengths = [length] if isinstance(length, int) else list(length)
    with given_to_read(
        model,
        tokenizer,
        data,
        lengths,
        stride=stride,
        max_tokens=max_tokens,
        batch_tokens=batch_tokens,
        separate_documents=separate_documents,
        bos=str(bos).lower(),
    ) as reader:
        check_dispersion(dispersion, separate=reader.separate_documents)
        first_tokens = first_tokens_of(reader, lengths)
        losses, dispersions = measure(reader, first_tokens, dispersion=dispersion)
        return DataFrame(records_of_text(reader, first_tokens, losses, dispersions, {}))


def probe(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    rows: bool = True,
    entropy: bool = True,
    batch_tokens: int = 2048,
) -> Probe:
    """Measure how a decoder uses the frequencies of its RoPE, in one pass over `texts`.

    model, tokenizer: as in `attention`. rows: whether to sample rows of attention weights too; labels, logits by
    frequency, largest weights and logit spreads need these rows. entropy: whether to measure the entropy of every row
    too; this takes a second pass of attention. batch_tokens: the number of tokens in a batch. Memory depends on
    `batch_tokens` and the longest text, not on the number of texts.

    Returns a `Probe`: `probe.arrays()["query_norm"]` is [L, H, P], the mean norm of the queries in each channel pair,
    fastest pair first; `probe.labels()` gives every head its label. If no layer rotates at known frequencies, all that
    depends on frequencies is left out. Raises UserError for a model that rotates its pairs in an unknown way or is not
    causal, and for a str in place of a list of texts.

        rr.plot(rr.probe(model, tokenizer, texts), "norms")
    """
    from roundround.asking.loaded_model import given_to_probe
    from roundround.data.tokenizers import check_known
    from roundround.probing.probe import observe

    if isinstance(texts, str):
        raise UserError("texts is a single text, and rr.probe takes a list of texts: give [text]")
    with given_to_probe(model, tokenizer, texts) as probed:
        tokens = [probed.tokens(text) for text in texts]
        check_known([token for text in tokens for token in text], probed.unknown_token, "the texts")
        return observe(probed, tokens, rows=rows, entropy=entropy, batch_tokens=batch_tokens)


def patch(
    model: nn.Module,
    softmax: str | Callable[[AttentionShape], AttentionSoftmax] | None = None,
    pe: str | Callable[[AttentionShape], PositionalEncoding] | None = None,
    **numbers: float | bool | list[float] | None,
) -> Patch:
    """Put another normaliser or encoding into a loaded model, in place.

    model: a model from `load`, which takes any normaliser and encoding, or a Hugging Face decoder, which takes any
    normaliser and, if it has RoPE, any encoding that neither changes embeddings nor draws positions. softmax, pe: the
    name of an option (`roundround list softmax`), or a function from an AttentionShape to the module. The function is
    called for each layer, and the encodings of layers can differ. If no `theta` is given, the encoding keeps the base
    that the model uses in the same layer. numbers: new values for keys of the named options, such as
    `temperature=0.5, p=0.25`; each value goes to the option that has the key. Returns a `Patch`: call its `remove()`,
    or use it in a `with` block, which removes it at the end:

        with rr.patch(model, softmax="adaptive_temperature"):
            model.generate(...)

    Generation with a cache works, and `output_attentions=True` gives the weights of the new normaliser. The learned
    parameters of the new modules start at the values in the option's yaml and are in `model.parameters()`. Raises
    UserError if the model is patched already, or if the model and the option cannot be combined: a model with a soft
    cap, for example, takes no other normaliser.
    """
    import torch

    from roundround.asking.loaded_model import makers_of
    from roundround.hf.load import as_pretrained_model
    from roundround.hf.patching.patch import Patch
    from roundround.model.decoder import Decoder

    checked = model if isinstance(model, Decoder) else as_pretrained_model(model)
    make_softmax, make_encoding = makers_of(softmax, pe, numbers)
    with torch.no_grad():
        patched = Patch(checked, make_softmax, make_encoding)
    if patched.remark is not None:
        warnings.warn(patched.remark, stacklevel=2)
    return patched


# -- in a model of one's own


def normaliser(
    name: str | Callable[[AttentionShape], AttentionSoftmax],
    *,
    n_layers: int | None = None,
    n_heads: int | None = None,
    head_dim: int | None = None,
    d_model: int | None = None,
    train_length: int | None = None,
    layer: int = 0,
    **numbers: float | bool | None,
) -> Normaliser:
    """A normaliser for your own model: in place of PyTorch's attention in a `with` block, or as a part for `attend`.

    name: an option (`roundround list softmax`), or a function from an AttentionShape to the module. numbers: new values
    for keys of the option. n_heads, head_dim, d_model, train_length: sizes of the model, in tokens for the last; a
    normaliser that needs one of them and does not get it says so. layer: the number of the part's layer. n_layers: the
    number of layers of a replacement, if each needs its own parameters.

        with rr.normaliser("entmax15"):
            loss = model(tokens, targets)  # every F.scaled_dot_product_attention
            loss.backward()

    Returns an `nn.Module`; `layers` are the normalisers. Inside the block masks, `is_causal`, `scale`, `enable_gqa` and
    `dropout_p` mean what they mean to PyTorch. If the normaliser learns, give `n_heads` and `n_layers`, and its
    `parameters()` to the optimizer. Its layers belong to the modules that call attention, in the order of their first
    calls, so use it for one model. With activation checkpointing, call `backward` in the block too. Raises UserError or
    ValueError for an unknown name or number, a mask that is neither causal nor a window nor padding, a normaliser that
    reads the input of its layer, and another number of layers.
    """
    from roundround.asking.loaded_model import maker_of
    from roundround.model.parts import Normaliser, Sizes

    make = maker_of("softmax", name, numbers)
    return Normaliser(
        [
            make(Sizes(n_heads=n_heads, head_dim=head_dim, d_model=d_model, train_length=train_length, layer=layer + i))
            for i in range(n_layers or 1)
        ],
        n_layers,
    )


def encoding(
    name: str | Callable[[AttentionShape], PositionalEncoding],
    *,
    n_heads: int,
    head_dim: int,
    n_key_heads: int | None = None,
    d_model: int | None = None,
    train_length: int | None = None,
    layer: int = 0,
    **numbers: float | bool | list[float] | None,
) -> PositionalEncoding:
    """An encoding as a part of your own model, for `attend`; its parameters are those of an `nn.Module`.

    name: an option (`roundround list pe`), or a function from an AttentionShape to the module. numbers: new values for
    keys of the option. n_key_heads: None for `n_heads`. d_model: the width of the layer's input; None for
    n_heads * head_dim. train_length: the training context in tokens; an encoding that needs it and does not get it says
    so. layer: the number of the layer. Raises UserError for an unknown name or number.

        alibi = rr.encoding("alibi", n_heads=8, head_dim=64)
    """
    from roundround.asking.loaded_model import maker_of
    from roundround.model.parts import Sizes

    return maker_of("pe", name, numbers)(  # type: ignore[no-any-return]
        Sizes(
            n_heads=n_heads,
            n_key_heads=n_key_heads or n_heads,
            head_dim=head_dim,
            d_model=d_model or n_heads * head_dim,
            train_length=train_length,
            layer=layer,
        )
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normaliser: Normaliser | AttentionSoftmax,
    encoding: PositionalEncoding | None = None,
    x: Tensor | None = None,
    pos: Tensor | None = None,
    valid: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention [B, H, T, C] by an encoding and a normaliser, as in a layer of roundround's own decoder.

    q, k, v: queries [B, H, T, C], keys and values [B, G, T, C] of whole texts, not rotated; G divides H. encoding,
    normaliser: the parts from `encoding` and `normaliser`; without an encoding there are no positions. x: the layer's
    input [B, T, D], from which q, k and v are made, for parts that read it (FoX, ASEntmax). pos: the positions, int64
    [1 or B, T]; None for 0, 1, 2, ... valid: False at padding, [B, T]. causal: whether a query sees only its own token
    and those before it. window: the number of tokens that a query sees, its own included. scale: the factor of q . k;
    None for 1 / sqrt(C). Raises ValueError if a part does not fit the tensors or lacks `x`.

        y = rr.attend(q, k, v, encoding=self.encoding, normaliser=self.normaliser, x=x)
    """
    from roundround.model import parts

    return parts.attend(
        q,
        k,
        v,
        encoding=encoding,
        normaliser=normaliser,
        x_BTD=x,
        pos_BT=pos,
        valid_BT=valid,
        causal=causal,
        window=window,
        scale=scale,
    )


# -- runs


@final
@dataclass(frozen=True, repr=False)
class Run(PastRun):
    """A run directory, as `rr.train` and `rr.run` return it. Functions that take the path of a run also accept a `Run`.

    directory: the path of the run. manifest: the content of run.json. These attributes are computed from the manifest:
    `status` (done, running, interrupted, failed, died), `settings` (the values of the run's config under their dotted
    names), `choices`, `seconds` and `tokens_per_second`.
    """

    def __fspath__(self) -> str:
        return str(self.directory)

    def data_frame(self) -> DataFrame:
        """The records of results.json: a row for each number, with metric, value and coordinates (such as length)."""
        return DataFrame(self.results())

    def curves(self) -> DataFrame:
        """The numbers that training logged, a row for each step: loss and held_out_nats_per_token in nats, lr, ..."""
        return DataFrame(self.metrics() or {"step": []}).groupby("step").first()


def run(path: str | os.PathLike[str] = "last", *, outputs: str = "outputs") -> Run:
    """One past run of any verb. path: the run's directory, `last`, or `last~3` for the third run before the last one.

    outputs: the folder in which `last` is searched for. Raises UserError if the path is not a run or contains several.

        rr.run("last").data_frame()
    """
    found = directories_of(os.fspath(path), outputs)
    if len(found) > 1:
        raise UserError(f"{path} holds {len(found)} runs, and rr.run takes one run; rr.runs lists them")
    return Run(found[0], past_run(found[0]).manifest)


def runs(
    *paths: str | os.PathLike[str],
    where: Mapping[str, object] | None = None,
    outputs: str = "outputs",
    limit: int | None = None,
) -> DataFrame:
    """A table of the runs in `paths`, or of all runs under `outputs`, newest first, as `roundround runs` lists them.

    paths: run directories, sweeps, folders, patterns, `last`. where: filters, such as {"verb": "train", "pe":
    "rope,nope", "seed": 1, "since": "2d"}. limit: the largest number of runs; None for all. Returns a row for each run:
    run (the directory, which `rr.run` accepts), verb, overrides, status, started, seconds, and the most informative
    numbers of the run. Warns if a run cannot be read. Raises UserError for a filter on a setting that no run has.

        rr.runs(where={"verb": "train"})[["run", "overrides", "perplexity"]]
    """
    from roundround.report.lab_book import as_record

    filters, damaged = Filters(as_typed(where)), list[tuple[str, str]]()
    directories = directories_of_all([os.fspath(path) for path in paths], outputs)
    found = list(islice(runs_in(directories, filters, damaged), limit))
    if len(found) != limit:  # all runs have been read
        filters.check()
    for _, why in damaged:
        warnings.warn(f"passed over: {why}", stacklevel=2)
    rows = []
    for record in map(as_record, found):
        headline = record.pop("headline")
        rows.append({**record, "overrides": " ".join(record["overrides"]), **headline})
    return DataFrame(rows)


def train(*words: str) -> Run:
    """Train a model as `roundround train` does, in a process of its own; returns when training has ended.

    words: the words after `roundround train`, each a separate str: "pe=p_rope", "trainer.max_steps=50", "resume=DIR",
    "--config-dir=mine". The lines that the command prints go to standard error.
    An interruption (Ctrl-C, the stop button) saves the run, as in a terminal, and raises KeyboardInterrupt with the
    words that resume the run. Raises UserError if the command is refused, and RuntimeError if the training fails. Both
    exceptions contain the error line that the command printed.

        run = rr.train("pe=p_rope", "trainer.max_steps=50")
        model, tokenizer = rr.load(run)
    """
    from roundround.distributed.child import VerbFailed, start

    for word in words:
        if not isinstance(word, str) or (word.startswith("-") and not word.startswith("--config-dir=")):
            raise UserError(f"{word}: rr.train takes texts such as 'pe=rope' for one run; sweeps need the terminal")
    lines = list[str]()

    def tell(line: str) -> None:
        lines.append(line)
        print_status(line)

    def last_line(beginning: str) -> str:
        return next((line.removeprefix(beginning) for line in reversed(lines) if line.startswith(beginning)), "")

    try:
        return run(start(["train", *words, "hydra.mode=RUN"], tell=tell))  # one run of an experiment, not its sweep
    except AlreadyReported as error:
        raise UserError(last_line("roundround train: ") or str(error)) from None
    except VerbFailed as error:
        raise RuntimeError(last_line("roundround train: ") or str(error)) from None
    except Interrupted:
        resume = last_line("resume with: roundround train ")
        hint = f'; rr.train("{resume}") resumes it' if resume else ""
        raise KeyboardInterrupt(f"roundround train was stopped{hint}") from None


# -- training loops of others


def watch(*, every: int = 100, to: Any = None, seed: int = 0) -> Watch:
    """See what attention does in any training loop of PyTorch, on every `every`-th step, without an edit of the model.

    The result is used in a `with` block around the loop, or as a callback of Lightning's Trainer or of transformers'
    Trainer. Every call of `torch.nn.functional.scaled_dot_product_attention` on such a step is measured, over a few
    rows of one text of the batch, drawn by `seed`; a module that makes the same call several times is measured at the
    first. A step ends when the optimizer has made its step, or where you call `step()` of the watch. Training and its
    random numbers are not changed, except that a compiled model runs uncompiled on measured steps and rounds
    otherwise. Only the first process measures.

    to: where the numbers go beside `records`: a path that ends in .jsonl, to which lines are added; a function of
    the step and the numbers; a run of wandb; a SummaryWriter of TensorBoard. Returns a `Watch`. Raises UserError for
    a value that is not allowed, and if two watches are active at once.

        with rr.watch(every=100, to="attention.jsonl") as seen:
            train(model)
        seen.page("attention.html")
    """
    from roundround.probing.watch import watch_class
    from roundround.report.train_panels import write_page_of_watch

    return watch_class()(every, to, seed, write_page_of_watch)


# -- figures


def plot(result: object, what: str | None = None) -> Any:
    """Draw a picture of a result, as `roundround report` draws it; returns a matplotlib Figure, which a notebook shows.

    result: a `Probe`, a `Comparison`, `AttentionWeights`, or a run or its directory. what: the name of a picture; None
    for the first picture of the result. A `Probe` has `labels`, `logits_by_frequency`, `without_a_band`, `norms` and
    `heads`. A `Comparison` has the pictures that `roundround compare` writes, quality by context length first.
    `AttentionWeights` have `all`, and a picture of each head with the tokens, such as `2.3` for layer 2, head 3. A
    run's page has sections, and each section with curves is a picture, such as `curves`. Raises UserError for an
    unknown name, or if nothing can be drawn.

        rr.plot(weights, "2.3").savefig("head.pdf")
    """
    from roundround.report.notebook import drawn, pictures_of

    return drawn(pictures_of(run(result).directory if isinstance(result, str | os.PathLike) else result), what)
