"""The loss of each target, however windows are batched and logits chunked."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import ROOT
from omegaconf import OmegaConf
from torch import Tensor

from roundround.model import decoder as decoder_module
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss, Share, score
from roundround.trained.models import build_decoder

CPU = torch.device("cpu")
N_VOCAB = 53
WINDOWS = torch.randint(N_VOCAB, (7, 13), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def decoder() -> Decoder:
    """A small decoder that is far from indifferent between tokens."""
    sizes = {"d_model": 32, "n_layers": 2, "d_mlp": 40, "train_length": 12, "initializer_range": 0.4}
    model = OmegaConf.merge(OmegaConf.load(ROOT / "conf" / "model" / "tiny.yaml"), sizes)
    pe, softmax = (OmegaConf.load(ROOT / "conf" / path) for path in ("pe/rope.yaml", "softmax/softmax.yaml"))
    torch.manual_seed(0)
    return build_decoder(model, pe, softmax, N_VOCAB)


def test_scores_are_the_mean_loss_of_each_target_by_its_place_in_the_window(decoder: Decoder) -> None:
    # -log p(target) of each target of each window: one window at a time, float64, by the formula
    expected = []
    for window in WINDOWS:
        with torch.no_grad():
            logits_TV = decoder(window[None, :-1])[0].double()
        rows = zip(logits_TV.tolist(), window[1:].tolist(), strict=True)
        expected.append([math.log(sum(math.exp(x) for x in row)) - row[target] for row, target in rows])
    loss = score(decoder, WINDOWS, batch=3, device=CPU)
    assert loss.n_targets == 7 * 12
    assert loss.by_position == pytest.approx([sum(column) / 7 for column in zip(*expected, strict=True)], rel=1e-5)
    assert loss.token_loss() == pytest.approx(sum(map(sum, expected)) / (7 * 12), rel=1e-6)
    assert max(loss.by_position) > 1.2 * min(loss.by_position), "positions that cannot be told apart prove nothing"


@pytest.mark.parametrize("rows", [1, 5, 12, 1000])
def test_chunks_of_logits_stay_within_their_bound_and_do_not_change_the_score(
    decoder: Decoder, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = score(decoder, WINDOWS, batch=4, device=CPU)
    unembed = Mock(wraps=decoder.unembed)
    monkeypatch.setattr(decoder, "unembed", unembed)
    monkeypatch.setattr(decoder_module, "LOGITS_AT_ONCE_ON_CPU", rows * N_VOCAB + N_VOCAB - 1)
    chunked = score(decoder, WINDOWS, batch=4, device=CPU)
    sizes = [len(call.args[0]) for call in unembed.call_args_list]
    assert max(sizes) == min(rows, 4 * 12)
    assert sum(sizes) == 7 * 12
    torch.testing.assert_close(chunked.sum_T, whole.sum_T, rtol=1e-5, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_scoring_leaves_the_model_in_the_mode_it_was_in_and_makes_no_graph(decoder: Decoder, training: bool) -> None:
    decoder.train(training)
    modes: list[tuple[bool, bool]] = []
    decoder.layers[0].register_forward_hook(lambda layer, _args, out: modes.append((layer.training, out.requires_grad)))
    score(decoder, WINDOWS, batch=7, device=CPU)
    assert modes == [(False, False)]
    assert [module.training for module in decoder.modules()] == [training] * len(list(decoder.modules()))


def test_windows_may_lie_on_disk(decoder: Decoder, tmp_path: Path) -> None:
    class OnDisk:
        def __init__(self) -> None:
            np.save(tmp_path / "windows.npy", WINDOWS.numpy())
            self.mapped = np.load(tmp_path / "windows.npy", mmap_mode="r")

        def __len__(self) -> int:
            return len(self.mapped)

        def __getitem__(self, rows: slice, /) -> Tensor:
            return torch.from_numpy(np.array(self.mapped[rows]))

    in_memory = score(decoder, WINDOWS, batch=3, device=CPU)
    on_disk = score(decoder, OnDisk(), batch=3, device=CPU)
    assert torch.equal(on_disk.sum_T, in_memory.sum_T)


def test_position_loss_means_over_windows_and_over_targets() -> None:
    loss = PositionLoss(3)
    loss.add(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 1.0]]))
    loss.add(torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    assert loss.by_position == [2.0, 0.5, 1.25]
    assert loss.token_loss() == 1.25
    assert loss.token_loss(1, 2) == 0.5
    assert loss.perplexity() == pytest.approx(math.exp(1.25))
    assert loss.n_targets == 12


def test_joints_between_documents_are_kept_apart(decoder: Decoder) -> None:
    joint = int(WINDOWS[0, 3])
    everything = score(decoder, WINDOWS, batch=4, device=CPU)
    apart = score(decoder, WINDOWS, batch=4, device=CPU, joints=lambda rows: WINDOWS[rows, 1:] == joint)
    assert apart.n_joints == int((WINDOWS[:, 1:] == joint).sum()) > 0
    assert apart.n_targets + apart.n_joints == everything.n_targets
    assert apart.perplexity_with_joints() == pytest.approx(everything.perplexity())
    lost = everything.sum_T.sum() - apart.sum_T.sum()
    assert apart.share_at_joints() == pytest.approx(float(lost / everything.sum_T.sum()))


def test_what_is_no_target_counts_for_nothing() -> None:
    loss = PositionLoss(3)
    loss.add(torch.tensor([[4.0, 1.0], [2.0, torch.nan]]), torch.tensor([[True, True], [True, False]]))
    assert (loss.token_loss(0, 1), loss.token_loss(1, 2), loss.n_targets) == (3.0, 1.0, 3)
    assert loss.by_position == [3.0, 1.0, None]
    assert math.isnan(loss.token_loss(2, 3))
    assert math.isnan(loss.perplexity(2, 3))


def test_shares_of_windows_are_every_window_once() -> None:
    windows = torch.arange(7)[:, None].expand(7, 3)
    shares = [Share(windows, first=rank, n=3) for rank in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert [share[0:2][:, 0].tolist() for share in shares] == [[0, 3], [1, 4], [2, 5]]
    assert [share[2:4][:, 0].tolist() for share in shares] == [[6], [], []]
    assert len(Share(windows, first=8, n=9)[0:4]) == 0
