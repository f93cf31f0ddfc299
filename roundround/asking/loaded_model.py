"""A model that a user loaded in Python, with its tokenizer: a decoder of this project or a Hugging Face model.

Tested by tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from roundround.asking.generation import DecoderWriter, PretrainedWriter, Writer
from roundround.asking.reader import Reader, check_lengths, check_symbols, joined
from roundround.config.build import build, maker
from roundround.config.options import load_option
from roundround.config.verb import checked_bos
from roundround.data.corpora import Corpus, Source
from roundround.data.tokenizers import Vocabulary
from roundround.distributed.peers import Peers
from roundround.model.decoder import Decoder
from roundround.model.parts import Normaliser
from roundround.pe.base import PositionalEncoding
from roundround.probing.probed_model import ObservedModel, ProbedDecoder, ProbedModel, ProbedParts, in_evaluation_mode
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError, nearest
from roundround.trained.models import first_of, text_for
from roundround.verbs.eval import check_windows

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel
    from roundround.hf.patching.attention import MakeSoftmax
    from roundround.hf.patching.patch import MakeEncoding
    from roundround.kernels.keys import AttentionShape

NAME = "the model"  # for a decoder of this project, because it does not know its run


@contextmanager
def given_to_write(model: nn.Module, tokenizer: Any) -> Iterator[Writer]:
    """A writer of the model, which is in evaluation mode inside the block.

    Raises UserError if the model is neither a decoder of this project nor a Hugging Face model.
    """
    with in_evaluation_mode(model):
        if isinstance(model, Decoder):
            yield DecoderWriter(NAME, model, vocabulary_of_run(tokenizer))
            return
        with hugging_face_model(model, tokenizer) as probed:
            yield PretrainedWriter(probed)


@contextmanager
def given_to_probe(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Iterator[ObservedModel]:
    """The model for a probe of some texts, in evaluation mode inside the block.

    Raises UserError if a text has a word that the vocabulary of a task lacks.
    Raises UserError if it is neither a decoder of this project nor of Hugging Face, nor a model that calls `rr.attend`.
    """
    with in_evaluation_mode(model):
        if isinstance(model, Decoder):
            vocabulary = vocabulary_of_run(tokenizer)
            for text in texts if vocabulary.first is not None else ():
                check_symbols(text, vocabulary)
            yield ProbedDecoder(NAME, model, vocabulary.tokenizer, first_of(vocabulary))
            return
        if isinstance(model, nn.Module) and any(isinstance(part, Normaliser) for part in model.modules()):
            if not all(callable(getattr(tokenizer, name, None)) for name in ("encode", "decode")):
                raise UserError("give a tokenizer that has encode(text) and decode(ids)")
            yield ProbedParts(model, tokenizer)
            return
        with hugging_face_model(model, tokenizer) as probed:
            yield probed


@contextmanager
def hugging_face_model(model: nn.Module, tokenizer: Any) -> Iterator[ProbedHuggingFaceModel]:
    """A Hugging Face model for a probe; inside the block its attention uses normalisers of this project."""
    from roundround.hf.load import ProbedHuggingFaceModel, as_pretrained_model
    from roundround.hf.patching.attention import installed, is_patched

    checked = as_pretrained_model(model)
    with nullcontext() if is_patched(checked) else installed(checked):
        name = str(checked.config.name_or_path).rstrip("/").rpartition("/")[2]
        yield ProbedHuggingFaceModel(name or type(checked).__name__, checked, tokenizer)


def vocabulary_of_run(tokenizer: Any) -> Vocabulary:
    """Return the given tokenizer. Raises UserError if it is not the tokenizer of a decoder of this project."""
    if not isinstance(tokenizer, Vocabulary):
        raise UserError("a model from rr.load needs the tokenizer from rr.load: model, tokenizer = rr.load(run)")
    return tokenizer


@contextmanager
def given_to_read(
    model: nn.Module,
    tokenizer: Any,
    data: str | Corpus | Sequence[str],
    lengths: Sequence[int],
    *,
    separate_documents: bool | None,
    bos: str,
    **reading: Any,
) -> Iterator[Reader]:
    """A `Reader` that reads the given text with the model, as `roundround eval` does.

    data: a corpus, the name of a corpus, or a list of texts. separate_documents: whether tokens attend only within
    their document; None for the setting of the corpus. reading: the options `stride`, `max_tokens` and `batch_tokens`.
    Raises UserError in the same cases as `roundround eval`.
    """
    check_windows(lengths, **reading)
    corpus: Source | Sequence[str] = data
    if isinstance(data, str):
        corpus = build(load_option("data", data), Source)  # type: ignore[type-abstract]
        if not isinstance(corpus, Corpus):
            raise UserError(f"data={data} is a task; to count right answers use roundround eval data={data}")
    with in_evaluation_mode(model), ExitStack() as stack:
        if isinstance(model, Decoder):
            vocabulary, device = vocabulary_of_run(tokenizer), model.embed_tokens.weight.device
            if vocabulary.first is not None:
                raise UserError(
                    "this model learned a task, so it cannot read running text; to count right answers use "
                    "roundround eval run=RUN"
                )
            if bos == "true":
                raise UserError(
                    "bos=true is for a Hugging Face model; a run was trained on windows that begin anywhere"
                )
            check_lengths(model, max(lengths), f"length={max(lengths)}", type(model.encoding).__name__)
            subject: Decoder | ProbedModel = model
        else:
            subject = probed = stack.enter_context(hugging_face_model(model, tokenizer))
            vocabulary, device = probed.vocabulary(), probed.device
        if isinstance(corpus, Corpus):
            text, separate = text_for(vocabulary, corpus), corpus.separate_documents
        else:
            texts = cast("Sequence[str]", corpus)
            text, separate = joined(texts, vocabulary, reading["max_tokens"]), False
        yield Reader(
            model=subject,
            data=text,
            device=device,
            bos=checked_bos(bos),
            separate_documents=separate if separate_documents is None else separate_documents,
            peers=Peers(),
            **reading,
        )


def maker_of(group: str, option: Any, numbers: Mapping[str, Any]) -> Any:
    """A function that makes the normaliser or encoding of a layer from its shape; None if there is no option.

    group: `softmax` or `pe`. option: the name of an option, or a user's function. numbers: values for its parameters.
    """
    family: Any = {"softmax": AttentionSoftmax, "pe": PositionalEncoding}[group]

    def made(shape: AttentionShape) -> Any:
        found = option(shape) if callable(option) and not isinstance(option, nn.Module) else option
        if found is option or not isinstance(found, family):
            what = found if isinstance(found, str | int | float) else f"a {type(found).__name__}"
            raise UserError(
                f"give a name, or a function of an AttentionShape that makes a {family.__name__}, not {what}"
            )
        return found

    return maker(load_option(group, option, **numbers), family) if isinstance(option, str) else option and made


def makers_of(
    softmax: str | MakeSoftmax | None, pe: str | MakeEncoding | None, numbers: Mapping[str, Any]
) -> tuple[MakeSoftmax | None, MakeEncoding | None]:
    """`maker_of` a normaliser and an encoding.

    numbers: values for parameters of the named options. Raises UserError if a parameter belongs to none of the named
    options or to both of them.
    """
    given = {"softmax": softmax, "pe": pe}
    known = {group: {*load_option(group, of)} - {"_target_"} for group, of in given.items() if isinstance(of, str)}
    for name in numbers:
        if sum(name in names for names in known.values()) != 1:
            near = nearest(name, [key for names in known.values() for key in names])
            raise UserError(f"'{name}' must be a parameter of exactly one of the named options{near}")
    own = {group: {name: numbers[name] for name in numbers if name in known.get(group, ())} for group in given}
    return maker_of("softmax", softmax, own["softmax"]), maker_of("pe", pe, own["pe"])
