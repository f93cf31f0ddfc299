"""What the paper's Gemma 2B would take on 8, 64 and 512 GPUs: memory, communication and time of a step, by formula.

    python benchmarks/scale_on_paper.py

Nothing is trained and no GPU is needed. docs/inside/scale_on_paper.md has the formulas and these tables; sizes come
from the model's own config, on the meta device.
"""

from __future__ import annotations

import torch

from roundround.config.options import compose
from roundround.model.decoder import Decoder, n_parameters
from roundround.trained.models import build_decoder
from roundround.training.bookkeeping import TERAFLOPS, training_flops

GPU, MFU = "H100", 0.3
NVLINK = 450e9  # bytes a second of a GPU, in one direction, within a machine
NETWORK = 8 * 50e9  # of a machine: each of its 8 GPUs has a rail, which carries an eighth of what leaves the machine
N_VOCAB, WINDOWS = 256_128, 512  # of a step, as in the paper
FLOAT32, FLOAT16 = 4, 2


def main() -> None:
    config = compose("train", ["experiment=rope/table2_paper", "data=wikipedia", "pe=p_rope"], None)
    with torch.device("meta"):
        decoder = build_decoder(config.model, config.pe, config.softmax, N_VOCAB)
    length = int(config.model.train_length)
    n, of_layer = n_parameters(decoder), n_parameters_of(decoder.layers[0])
    flops = training_flops(decoder, length=length)
    print(f"{n:,} parameters, {of_layer:,} of a layer, {n - len(decoder.layers) * of_layer:,} outside of them")
    print(f"{flops / 1e9:.1f} GFLOP a token; a window of {length:,} tokens on one GPU: {seconds(flops, length):.2f} s")
    whole, again = activations(decoder, length, checkpointing=False), activations(decoder, length, checkpointing=True)
    print(f"activations of a window: {gb(whole)}, or {gb(again)} with activation_checkpointing=true\n")
    print(row("GPUs", "strategy", "parameters", "gathered", "in all", "micro-batches", "computing", "communicating"))
    print(row(*["---"] * 8))
    for n_gpus in (8, 64, 512):
        for strategy in ("ddp", "fsdp2"):
            print(row(n_gpus, strategy, *numbers(decoder, n_gpus, strategy, flops * length, again)))


def numbers(decoder: Decoder, n_gpus: int, strategy: str, flops: float, activations: float) -> list[str]:
    """Memory of a GPU, micro-batches of one window, and the seconds that a step computes and communicates."""
    n, of_layer = n_parameters(decoder), n_parameters_of(decoder.layers[0])
    shared = strategy == "fsdp2"
    micro_batches = WINDOWS // n_gpus
    kept = 4 * FLOAT32 * n / (n_gpus if shared else 1)  # the weight, its gradient, two moments
    outside = n - len(decoder.layers) * of_layer
    # gathered: two layers, and what lies outside of them, each with its gradient; DDP's buckets are a second gradient
    besides = 2 * FLOAT32 * (2 * of_layer + outside) if shared else FLOAT32 * n
    early = FLOAT32 * n if not shared and micro_batches == 1 else 0  # no gradient is there yet beside the activations
    share = (n_gpus - 1) / n_gpus * FLOAT32 * n
    moved = 3 * share * micro_batches if shared else 2 * share
    bandwidth = NVLINK if n_gpus <= 8 else NETWORK
    memory = [gb(kept), gb(besides), gb(kept + besides + activations - early)]
    return [*memory, str(micro_batches), f"{seconds(flops, micro_batches):.2f} s", f"{moved / bandwidth:.2f} s"]


def activations(decoder: Decoder, length: int, *, checkpointing: bool) -> float:
    """Bytes that the backward pass of one window needs, in 16 bits but for the residual stream and the logits."""
    shape, d_mlp = decoder.encoding.shape, decoder.layers[0].mlp.down_proj.in_features
    d_model, channels = shape.d_model, shape.n_heads * shape.head_dim
    stream = 2 * FLOAT32 * d_model
    of_layer = stream + FLOAT16 * (2 * d_model + 5 * channels + 4 * d_mlp)
    per_token = len(decoder.layers) * (FLOAT32 * d_model if checkpointing else of_layer)
    per_token += (of_layer if checkpointing else 0) + (FLOAT32 + FLOAT16) * decoder.embed_tokens.num_embeddings
    weights = 0 if checkpointing else sum(map(n_parameters_of, decoder.layers))  # whose 16-bit copies autocast keeps
    return float(length * per_token + FLOAT16 * weights)


def n_parameters_of(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def seconds(flops: float, times: float) -> float:
    """Of that much computing on one GPU."""
    return flops * times / (MFU * TERAFLOPS[GPU] * 1e12)


def gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
