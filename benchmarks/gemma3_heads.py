"""What docs/results/gemma3.md says of single heads: python benchmarks/gemma3_heads.py google/gemma-3-270m FOLDER

Writes FOLDER/heads.txt, to read, and FOLDER/heads.csv: its numbers in their order, each with the value of every text.

First the heads that look for an earlier copy of the token and rest on what came after it, then the head that looks for
an apostrophe before the token: who they are, on which pairs they depend, and what else they answer to. Last, how near
positional heads come to the bound of Cauchy and Schwarz. It takes two minutes on a CPU. A number is a mean over texts,
or over the tokens of one prompt where that is said, and its brackets are Student's 95 % interval over them.
Shapes: N texts, L layers, H heads, B rows of text, T tokens, R rows of attention, C head channels, P pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from gemma3_windows import Record, mean_with_ends, write
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import attention_layers, installed
from roundround.papers.constructions import Call, calls
from roundround.probing.probe import observe
from roundround.probing.texts import APOSTROPHE as PROMPT

COPIED, SEQUENCES = 64, 8  # random tokens that come twice, and how many such texts
IDS = (1000, 50_000)  # from which they are drawn: words and parts of words
LENGTHS = (16, 64, 256, 1024)
SILENCED = ([(2, 3)], [(4, 1)], [(10, 1)], [(2, 1)], [(4, 0)])  # previous-token heads, and two others
POSITIONAL = ((8, 0), (17, 1), (2, 3), (4, 1), (10, 1))  # two diagonal heads, three for the token before
BANDS = {"no pair": (0, 0), "fastest": (0, 1), "fast": (1, 2), "slow": (2, 3), "slowest": (3, 4)}  # quarters

COPY = "weight after the first copy, on the first token"
MARK = "weight on the mark, on the first token"
TOLD: list[Record] = []  # all that was printed, for heads.csv
LOGIT = "logit over the mean of all other keys, by quarter of the pairs, the fastest first"

APOSTROPHE = "'"
SENTENCES = (
    "I'm not going home today, and you're not going there.",
    "She said that it's late and that he's tired of it.",
    "They don't know what we've done to the old house.",
    "The boy's hat was on the girl's chair near the door.",
    "We can't stay here because they'll come back soon.",
    "He didn't see the dog's bone under the big table.",
)
BEFORE = "The old man went to a"
MARKS = (APOSTROPHE, "\u2019", '"', "(", "-", ",", ".", " the", " man")
ENDINGS = ("s", "t", "m", "re", "ve", "ll", "d")
WORDS = (" house", " of", " and", " she", " day", " in", " good", " went", " not", " it")


class Rows:
    """Some rows of attention of one head: queries [R, 2, P], keys [R, T, 2, P] and which keys each sees, [R, T]."""

    def __init__(self, call: Call, head: int, row_B: Tensor | None = None, rows_R: Tensor | None = None) -> None:
        """Row `row_B[b]` of every text, or rows `rows_R` of the first."""
        q_BTC, k_BTC = call.q_BHTC[:, head], call.k_BHTC[:, head]
        if row_B is not None:
            self.rows, q_RC, k_RTC = row_B, q_BTC[torch.arange(len(row_B)), row_B], k_BTC
        else:
            assert rows_R is not None
            self.rows, q_RC, k_RTC = rows_R, q_BTC[0, rows_R], k_BTC[:1].expand(len(rows_R), -1, -1)
        self.q_R2P = q_RC.unflatten(-1, (2, -1)) * call.scale  # half-split: channels m and m + P are a pair
        self.k_RT2P = k_RTC.unflatten(-1, (2, -1))
        distance_RT = self.rows[:, None] - torch.arange(k_RTC.shape[1])
        self.seen_RT = (distance_RT >= 0) & (distance_RT < (call.window or k_RTC.shape[1]))

    def by_pair(self, key_R: Tensor) -> Tensor:
        """What each pair adds to the logit of one key of each row: [R, P]."""
        return (self.q_R2P * self.k_RT2P[torch.arange(len(self.rows)), key_R]).sum(1)

    def mean_by_pair(self) -> Tensor:
        """The same, the mean over all keys that the row sees but the first: [R, P]."""
        others = self.seen_RT.clone()
        others[:, 0] = False
        mean_R2P = (self.k_RT2P * others[..., None, None]).sum(1) / others.sum(-1)[:, None, None]
        return (self.q_R2P * mean_R2P).sum(1)

    def weights(self, without: str = "no pair") -> Tensor:
        """[R, T], with one of BANDS taken out of the logits."""
        n_pairs = self.q_R2P.shape[-1]
        first, last = (n_pairs * end // 4 for end in BANDS[without])
        kept_P = torch.ones(n_pairs)
        kept_P[first:last] = 0.0
        logits_RT = torch.einsum("rcp,rtcp->rt", self.q_R2P * kept_P, self.k_RT2P)
        return logits_RT.masked_fill(~self.seen_RT, -torch.inf).softmax(-1)


def heads_of(of_layers: Sequence[Call]) -> list[tuple[int, int]]:
    return [(layer, head) for layer, call in enumerate(of_layers) for head in range(call.q_BHTC.shape[1])]


def at(alpha_RT: Tensor, key_R: Tensor) -> Tensor:
    """[R, 2]: each row's weight on one key of its own, and on the first token."""
    return torch.stack([alpha_RT[torch.arange(len(key_R)), key_R], alpha_RT[:, 0]], dim=-1)


def told(values_N: Tensor, digits: int = 2) -> str:
    """The mean over texts and its interval."""
    ends = mean_with_ends(values_N.tolist())
    TOLD.append({"number": len(TOLD)} | ends)
    value, low, high = (f"{ends[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def all_told(values_NK: Tensor) -> str:
    return "  ".join(map(told, values_NK.unbind(-1)))


def parts(added_NRP: Sequence[Tensor]) -> str:
    """Means over the rows of each text [R, P]: the sum, each quarter of the pairs, and the strongest pairs."""
    added_NP = torch.stack([added_RP.mean(0) for added_RP in added_NRP])
    whole = told(added_NP.sum(-1), 1)
    quarters = ", ".join(told(part.sum(-1), 1) for part in added_NP.chunk(4, -1))
    strongest = ", ".join(
        f"{pair}: {told(added_NP[:, pair], 1)}" for pair in added_NP.mean(0).abs().argsort(descending=True)[:4].tolist()
    )
    return f"{whole} = {quarters}; strongest pairs {strongest}"


@contextmanager
def silenced(probed: ProbedHuggingFaceModel, heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Inside, these heads add nothing to their layers' output."""
    hooks = []
    for layer, head in heads:
        n = probed.normalisers[layer].shape.head_dim

        def silence(
            module: nn.Module, inputs: tuple[Tensor], own: slice = slice(head * n, head * n + n)
        ) -> tuple[Tensor]:
            left = inputs[0].clone()
            left[..., own] = 0.0
            return (left,)

        hooks.append(attention_layers(probed.pretrained)[layer].o_proj.register_forward_pre_hook(silence))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# -- copies


def copied(probed: ProbedHuggingFaceModel, n: int, seed: int) -> tuple[list[Call], Tensor]:
    """Attention on n random tokens that come twice, and the rows of the second copies.

    The last is left out: another token comes after its first copy.
    """
    assert probed.first_token is not None
    drawn = torch.randint(*IDS, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    return calls(probed, [([probed.first_token, *drawn, *drawn], 0)]), torch.arange(n + 1, 2 * n)


def copy_scores(
    probed: ProbedHuggingFaceModel, n: int, heads: Sequence[tuple[int, int]] | None = None
) -> dict[tuple[int, int], Tensor]:
    """[N, 2] of each head: mean weight on the token after the first copy, and on the first token of the text."""
    found: dict[tuple[int, int], list[Tensor]] = {}
    for seed in range(SEQUENCES):
        of_layers, rows = copied(probed, n, seed)
        for layer, head in heads or heads_of(of_layers):
            alpha = Rows(of_layers[layer], head, rows_R=rows).weights()
            found.setdefault((layer, head), []).append(at(alpha, rows - n + 1).mean(0))
    return {head: torch.stack(own) for head, own in found.items()}


def show_copies(probed: ProbedHuggingFaceModel) -> None:
    scores = copy_scores(probed, COPIED)
    best = sorted(scores, key=lambda head: -float(scores[head][:, 0].mean()))[:6]
    print(f"\n{COPIED} random tokens twice, {SEQUENCES} texts, {SEQUENCES * (COPIED - 1)} rows: {COPY}")
    for layer, head in best:
        print(f"  {layer}.{head}  {all_told(scores[layer, head])}")
    layer, head = best[0]
    found = [copied(probed, COPIED, seed) for seed in range(SEQUENCES)]
    some = [Rows(of_layers[layer], head, rows_R=rows) for of_layers, rows in found]
    print(f"\n{layer}.{head} without a quarter of its pairs: {COPY}")
    for band in BANDS:
        found_N2 = torch.stack([at(rows.weights(band), rows.rows - COPIED + 1).mean(0) for rows in some])
        print(f"  {band:8} {all_told(found_N2)}")
    print(LOGIT)
    for name, key in (("after the first copy", 1 - COPIED), ("first token", None)):
        added = [rows.by_pair(rows.rows * 0 if key is None else rows.rows + key) - rows.mean_by_pair() for rows in some]
        print(f"  {name:20} {parts(added)}")
    print(f"other lengths: {COPY}")
    for n in LENGTHS:
        print(f"  {n:5} tokens twice: {all_told(copy_scores(probed, n, [best[0]])[best[0]])}")
    print(f"{layer}.{head} with another head silenced: {COPY}")
    for heads in SILENCED:
        with silenced(probed, heads):
            scores = copy_scores(probed, COPIED, [best[0]])
        print(f"  {', '.join(f'{a}.{b}' for a, b in heads)}: {all_told(scores[best[0]])}")


# -- apostrophes


def show_apostrophes(probed: ProbedHuggingFaceModel) -> None:
    texts = [probed.tokens(sentence) for sentence in SENTENCES]
    found = [calls(probed, [(tokens, 0)]) for tokens in texts]
    after = [rows_after(probed, tokens) for tokens in texts]
    others = [
        torch.tensor([row for row in range(3, len(tokens)) if row not in rows.tolist()])
        for tokens, rows in zip(texts, after, strict=True)
    ]
    n_after, n_others = sum(map(len, after)), sum(map(len, others))

    def means(layer: int, head: int, band: str = "no pair") -> Tensor:
        """[N, 4]: weight on the token before and on the first, in rows behind an apostrophe and in others."""
        of_kinds = [
            [
                at(rows.weights(band), rows.rows - 1).mean(0)
                for rows in (Rows(call[layer], head, rows_R=own) for call, own in zip(found, which, strict=True))
            ]
            for which in (after, others)
        ]
        return torch.cat([torch.stack(kind) for kind in of_kinds], dim=-1)

    scores = {(layer, head): means(layer, head) for layer, head in heads_of(found[0])}
    best = sorted(scores, key=lambda head: float((scores[head][:, 2] - scores[head][:, 0]).mean()))
    print(f"\n{len(texts)} sentences, {n_after} tokens after an apostrophe: {MARK}")
    print(f"and {n_others} others: weight on the token before, on the first token")
    for layer, head in [*best[:3], (5, 1)]:
        print(f"  {layer}.{head}  {all_told(scores[layer, head])}")
    layer, head = best[0]
    print(f"\n{layer}.{head} without a quarter of its pairs: the same four")
    for band in BANDS:
        print(f"  {band:8} {all_told(means(layer, head, band))}")
    some = [Rows(of_layers[layer], head, rows_R=rows) for of_layers, rows in zip(found, after, strict=True)]
    print(f"{LOGIT}, in the rows after an apostrophe")
    print(f"  apostrophe  {parts([rows.by_pair(rows.rows - 1) - rows.mean_by_pair() for rows in some])}")
    print(f"  first token {parts([rows.by_pair(rows.rows * 0) - rows.mean_by_pair() for rows in some])}")
    show_marks(probed, layer, head)


def rows_after(probed: ProbedHuggingFaceModel, tokens: Sequence[int]) -> Tensor:
    """Rows of the tokens that come right after an apostrophe."""
    words = [word.strip() for word in probed.words(tokens)]
    return torch.tensor([row for row in range(3, len(tokens)) if words[row - 1] == APOSTROPHE])


def show_marks(probed: ProbedHuggingFaceModel, layer: int, head: int) -> None:
    """The head's weight on other tokens in the apostrophe's place, and on an apostrophe farther away."""
    print(f"\n{layer}.{head} on {BEFORE!r}, a mark, and one of {len(ENDINGS)} endings or {len(WORDS)} words: {MARK}")

    def weight(mark: str, kind: Sequence[str], distance: int = 1) -> str:
        texts = [
            probed.tokens(BEFORE)
            + probed.text_tokens(mark)
            + probed.text_tokens(" very") * (distance - 1)
            + probed.text_tokens(token)
            for token in kind
        ]
        last = torch.tensor([len(tokens) - 1 for tokens in texts])
        assert len(set(last.tolist())) == 1, "every mark and every ending must be one token"
        alpha = Rows(calls(probed, [(tokens, 0) for tokens in texts])[layer], head, row_B=last).weights()
        return all_told(at(alpha, last - distance))

    for mark in MARKS:
        print(f"  {mark!r:7} endings {weight(mark, ENDINGS)};  words {weight(mark, WORDS)}")
    for distance in (2, 3, 4):
        print(f"  {APOSTROPHE!r} {distance} tokens before: endings {weight(APOSTROPHE, ENDINGS, distance)}")


# -- alignment


def show_alignment(probed: ProbedHuggingFaceModel) -> None:
    """Tables 3 to 5 of arXiv:2410.06205, for Gemma 3 270M's own positional heads."""
    prompt = probed.tokens(PROMPT)
    seen = observe(probed, [prompt], rows=False, entropy=False, prompt=prompt).prompt
    assert seen is not None
    print(f"\n{len(prompt)} tokens of one prompt without the first: logit over bound, on itself, on the token before")
    for layer, head in POSITIONAL:
        of_head = seen.alignment(layer, head)
        found = [
            [logit / bound for logit, bound in list(zip(of_head[own], of_head[limit], strict=True))[skipped:]]
            for own, limit, skipped in (("diagonal", "bound", 1), ("previous", "bound_previous", 2))
        ]
        print(f"  {layer}.{head}  {'  '.join(told(torch.tensor(ratios)) for ratios in found)}")


def main(path: str, folder: str) -> None:
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    with installed(model), (Path(folder) / "heads.txt").open("w") as file, redirect_stdout(file):
        probed = ProbedHuggingFaceModel(Path(path).name, model, AutoTokenizer.from_pretrained(path))
        show_copies(probed)
        show_apostrophes(probed)
        show_alignment(probed)
    write(Path(folder) / "heads.csv", TOLD)


if __name__ == "__main__":
    main(*sys.argv[1:])
