"""Attention whose weights are any function of a whole row of logits, on a CPU: whole_rows.cpp, compiled on first use.

A normaliser's own definition runs where there is no compiler, on other devices, and for functions that `Kind` lacks.
The source is compiled once on a machine by a C++17 compiler, without headers of PyTorch or Python. The compiled library
is kept in the user's own cache. It uses the OpenMP that PyTorch has loaded already, so it is linked without an OpenMP.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/kernels/test_whole_rows.py and tests/kernels/test_compiled.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundround.kernels.bias import Bias, LinearBias, PiecewiseBias
from roundround.kernels.keys import Keys
from roundround.kernels.precision import wide_dtype
from roundround.kernels.sdpa import in_rows
from roundround.kernels.torch_internals import outside_compilation
from roundround.kernels.trial import FallsBack

FEWEST_QUERIES = 64  # the definition is as fast for fewer: a step of generation reads every key once
FLOPS_OF_A_THREAD = 2e6  # the least work of a thread


class Kind(IntEnum):
    """The kinds of functions from a row's logits to its weights, in the order of the same list in whole_rows.cpp."""

    SOFTMAX = 0
    ADAPTIVE = 1
    ENTMAX = 2
    SIGMOID = 3
    SOFTPICK = 4
    HARD = 5
    TOP_K = 6


@dataclass(frozen=True, kw_only=True)
class RowFunction:
    """How a normaliser turns the logits of a row into weights, in the form that whole_rows.cpp takes.

    factor: the number that multiplies all logits of a row, biases included.
    shift: for the sigmoid, the number that is subtracted from the logits; for the softmax, the logit of a null key.
    alpha: the alpha of entmax.
    cap: the soft cap of the softmax; 0 for no cap.
    numbers: further fields of `Call` that the kind needs, as a mapping from the field's name to its value.
    coefficients: the coefficients of the adaptive temperature's polynomial, highest power first.

    factor, shift and alpha broadcast to [B, H, Q, 1]. All three get gradients, except the shift of the sigmoid.
    """

    kind: Kind
    factor: Tensor | None = None
    shift: Tensor | None = None
    alpha: Tensor | None = None
    cap: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)
    coefficients: tuple[float, ...] = ()


class Call(ctypes.Structure):
    """The struct `Call` of whole_rows.cpp: sizes, numbers and addresses."""

    INTEGERS = "n_batch n_heads n_key_heads n_queries n_keys n_channels n_values kind causal window chunk n_threads k"
    INTEGERS += " n_coefficients n_coordinate_heads n_pieces"
    NUMBERS = "scale cap eps min_entropy min_beta lowest highest through_beta"
    STRIDED = "q key v grad_out"
    STRIDES = "q_strides k_strides v_strides grad_strides"
    TENSORS = "valid factor shift alpha table slopes t_q t_k pieces knots row_scale out saved"
    TENSORS += " dq dk dv d_factor d_shift d_alpha d_table d_slopes d_t_q d_t_k d_pieces d_row_scale"
    _fields_ = [
        *((name, ctypes.c_int64) for name in INTEGERS.split()),
        *((name, ctypes.c_double) for name in NUMBERS.split()),
        ("coefficients", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in STRIDED.split()),
        *((name, ctypes.c_int64 * 3) for name in STRIDES.split()),
        *((name, ctypes.c_void_p) for name in TENSORS.split()),
    ]


def fits(q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
    """Whether whole_rows.cpp can compute a call with these inputs, if `library` can compile it.

    It needs 64 or more queries. It takes neither documents nor chunks with padding, and not every type of bias.
    """
    if q_BHQC.device.type != "cpu" or keys.documents is not None or keys.n_queries < FEWEST_QUERIES:
        return False
    if torch.compiler.is_compiling() or not q_BHQC.is_floating_point() or q_BHQC.numel() == 0:
        return False
    if keys.chunks_are_shifted:
        return False
    if bias is None or isinstance(bias, LinearBias):
        return True
    if not bias.of_distance and not isinstance(bias, PiecewiseBias):
        return False
    # positions must grow by one from token to token, because whole_rows.cpp takes distances from indices
    pos_BK = keys.k_pos_BK[:, :1] + torch.arange(keys.n_keys)
    of_queries = pos_BK[:, keys.n_keys - keys.n_queries :]
    return torch.equal(keys.k_pos_BK, pos_BK) and torch.equal(keys.q_pos_BQ, of_queries)


@outside_compilation
def attention(
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    function: RowFunction,
    scale: float,
    keys: Keys,
    bias: Bias | None,
) -> Tensor:
    """Attention output [B, H, Q, C], with memory linear in length, for inputs that `fits` accepts.

    It computes in at least float32, whatever the precision of the queries. A row that sees nothing is zero. A row with
    a visible logit that is not finite is NaN.
    """
    dtype, rows = wide_dtype(q_BHQC.dtype), (*q_BHQC.shape[:3], 1)
    table = slopes = t_q = t_k = pieces = knots = row_scale = None
    if isinstance(bias, LinearBias):
        t_q, t_k = (t.to(torch.float64).expand(q_BHQC.shape[0], -1, -1).contiguous() for t in bias.coordinates(keys))
        slopes = bias.slopes.to(dtype).expand(rows).contiguous()
    elif bias is not None:
        distances = torch.arange(1 - keys.n_keys, keys.n_keys, device=q_BHQC.device)
        of_distance = bias.u(distances) if isinstance(bias, PiecewiseBias) else bias.by_distance(distances)
        table = of_distance.to(dtype).expand(q_BHQC.shape[1], -1).contiguous()
        if isinstance(bias, PiecewiseBias):
            pieces, knots = (x.to(dtype).contiguous() for x in bias.pieces())
            row_scale = bias.span(keys.q_pos_BQ).reciprocal().to(dtype).expand(len(q_BHQC), -1).contiguous()
    of_rows = [
        None if x is None else x.to(dtype).expand(rows).contiguous()
        for x in (function.factor, function.shift, function.alpha)
    ]
    of_bias = (table, slopes, t_q, t_k, pieces, row_scale, knots)
    tensors = (x.to(dtype) for x in (q_BHQC, k_BGKC, v_BGKC))
    with torch.autocast("cpu", enabled=False):
        out = WholeRows.apply(*tensors, *of_bias, *of_rows, function, scale, keys)  # type: ignore[no-untyped-call]
    return cast("Tensor", out).to(q_BHQC.dtype)


class WholeRows(torch.autograd.Function):
    """apply(q, k, v, *of_bias, factor, shift, alpha, function, scale, keys) gives the output [B, H, Q, C].

    `of_bias` are seven tensors: table, slopes, t_q, t_k, pieces, row_scale, knots. Each type of bias uses some of them;
    the others are None. A `LinearBias` uses its slopes and its coordinates t_q and t_k. A `PiecewiseBias` uses its
    pieces and knots, row_scale = 1 / span [B, Q], and a table [H, 2 K - 1] of `PiecewiseBias.u` at the distances
    1 - K .. K - 1, key position minus query position. For any other bias the table holds the bias at these distances.
    The forward pass saves four numbers for each row.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, function, scale, keys = inputs
        q, k, v = (in_rows(x) for x in tensors[:3])
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        saved = q.new_empty(*q.shape[:3], 4)
        call(f"forward_{KINDS[q.dtype]}", [q, k, v, *tensors[3:]], function, scale, keys, out=out, saved=saved)
        ctx.save_for_backward(q, k, v, *tensors[3:], saved)
        ctx.function, ctx.scale, ctx.keys = function, scale, keys
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, saved = ctx.saved_tensors
        q, k, v, table, slopes, t_q, t_k, pieces, _, _, *of_rows = tensors
        grads = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
        grads = {name: grad.contiguous() for name, grad in grads.items()}
        for name, x, wanted in zip(OF_ROWS, of_rows, ctx.needs_input_grad[10:13], strict=True):
            if x is not None and (wanted or name == "d_factor"):
                grads[name] = torch.zeros_like(x)
        if table is not None:
            grads["d_table"] = q.new_empty(q.shape[0], *table.shape)
        if slopes is not None:
            grads |= {"d_slopes": torch.zeros_like(slopes), "d_t_q": torch.zeros_like(slopes)}
            grads["d_t_k"] = q.new_empty(*q.shape[:2], k.shape[2])
        if pieces is not None:
            grads["d_pieces"] = q.new_zeros(q.shape[0], *pieces.shape)
            grads["d_row_scale"] = q.new_zeros(q.shape[:3])
        name = f"backward_{KINDS[q.dtype]}"
        call(name, tensors, ctx.function, ctx.scale, ctx.keys, saved=saved, grad_out=in_rows(grad_out), **grads)
        of_tables = [grads[n].sum(d) if n in grads else None for n, d in SUMMED.items()]
        d_t: list[Tensor | None] = [None, None]
        if slopes is not None:  # gradients of the coordinates [B, 1 or H, n], from the gradients of each head
            d_t = [grads[n].flatten(2).sum_to_size(t.shape).to(t.dtype) for t, n in ((t_q, "d_t_q"), (t_k, "d_t_k"))]
        of_q_k_v, d_rows = [grads[n] for n in ("dq", "dk", "dv")], [grads.get(n) for n in OF_ROWS]
        d_table, d_pieces, d_row_scale = of_tables
        of_bias = (d_table, grads.get("d_slopes"), *d_t, d_pieces, d_row_scale, None)
        return *of_q_k_v, *of_bias, *d_rows, None, None, None


KINDS = {torch.float32: "float", torch.float64: "double"}
OF_ROWS = ("d_factor", "d_shift", "d_alpha")
SUMMED = {"d_table": 0, "d_pieces": 0, "d_row_scale": 1}  # the axis to sum over: texts (0) or heads (1)


def call(name: str, tensors: list[Any], function: RowFunction, scale: float, keys: Keys, **results: Tensor) -> None:
    """Call the function of this name in whole_rows.cpp."""
    q, k, v, table, slopes, t_q, t_k, pieces, row_scale, knots, factor, shift, alpha = tensors
    n_batch, n_heads, n_queries, n_channels = q.shape
    work = 4.0 * n_batch * n_heads * n_queries * keys.n_keys * n_channels
    numbers = {"min_entropy": -math.inf, "min_beta": -math.inf, "lowest": -math.inf, "highest": math.inf}
    asked = Call(
        n_batch=n_batch, n_heads=n_heads, n_key_heads=k.shape[1], n_queries=n_queries, n_keys=k.shape[2],
        n_channels=n_channels, n_values=v.shape[-1], kind=function.kind, causal=keys.causal,
        window=keys.window or 0, chunk=keys.chunk or 0, scale=scale, cap=function.cap,
        n_threads=max(1, min(torch.get_num_threads(), int(work / FLOPS_OF_A_THREAD))),
        n_coefficients=len(function.coefficients), n_coordinate_heads=0 if t_k is None else t_k.shape[1],
        n_pieces=0 if pieces is None else pieces.shape[1],
        **{**numbers, **function.numbers},
    )  # fmt: skip
    coefficients = torch.tensor(function.coefficients, dtype=torch.float64)
    valid = None if keys.valid_BK is None else keys.valid_BK.expand(n_batch, -1).contiguous()
    given = {"key": k, "q": q, "v": v, "table": table, "slopes": slopes, "t_q": t_q, "t_k": t_k, "factor": factor}
    given |= {"pieces": pieces, "knots": knots, "row_scale": row_scale, "shift": shift, "alpha": alpha, "valid": valid}
    given |= {"coefficients": coefficients, **results}
    for field_name, x in given.items():
        setattr(asked, field_name, None if x is None else x.data_ptr())
    for field_name, x in (("q", q), ("k", k), ("v", v), ("grad", results.get("grad_out", q))):
        setattr(asked, f"{field_name}_strides", (ctypes.c_int64 * 3)(*x.stride()[:3]))
    getattr(library(), name)(ctypes.byref(asked))


# -- the library


SOURCES = [
    Path(__file__).with_name(name) for name in ("whole_rows.cpp", "row_blocks.h", "row_functions.h", "row_vectors.h")
]
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-w"]
LONGEST = 60  # seconds that a call of the compiler may take; it needs about five


class NotCompiled(FallsBack):
    """Warns once that whole_rows.cpp could not be compiled, so attention over whole rows runs by its definition."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of whole_rows.cpp; None, with a warning that names a log, if they could not be compiled.

    In an exported model, which contains no C++ source, and outside POSIX it returns None without a warning.
    The environment variable `CXX` names the compiler, as for make; CXX=false turns compilation off.
    """
    if os.name != "posix" or not SOURCES[0].exists():
        return None
    home, name = own_cache(), f"whole_rows-{fingerprint()}"
    try:
        # loading a file that a full disk or a loss of power has damaged would crash the process
        whole = (path for path in home.glob(f"{name}-*.so") if path.stem == f"{name}-{short_hash(path.read_bytes())}")
        return ctypes.CDLL(str(next(whole, None) or compiled(home, name)))
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:  # ValueError: an unclosed quote
        log = home / f"{name}.log"
        with contextlib.suppress(OSError):
            log.write_bytes(os.fsencode(f"{error}\n") + (getattr(error, "stderr", None) or b""))
        warnings.warn(
            f"attention over whole rows could not be compiled and runs by its definition, several times slower: {log}",
            NotCompiled,
            stacklevel=2,
        )
        return None


def own_cache() -> Path:
    """A folder that belongs to this user and that nobody else can write to.

    It is in the user's cache, such as ~/.cache, or if that is impossible, in TMPDIR or /tmp. If neither is possible,
    this process gets a temporary folder of its own.
    """
    places = [Path(os.environ.get("TMPDIR") or "/tmp", f"roundround-{os.getuid()}")]
    with contextlib.suppress(OSError, RuntimeError):  # no current folder, or the home is unknown
        places.insert(0, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "roundround").absolute())
    for home in places:
        with contextlib.suppress(OSError):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = home.stat()
            if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(home, os.W_OK):
                return home
    return Path(tempfile.mkdtemp(prefix="roundround-"))


def fingerprint() -> str:
    """A hash of all that the machine code depends on: the source, the flags and the CPU."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8", errors="replace").splitlines() if information.exists() else []
    units = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    parts = [path.read_text(encoding="utf-8") for path in SOURCES]
    parts += [*FLAGS, platform.machine(), platform.processor(), units]
    return short_hash("\n".join(parts).encode())


def short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def compiled(home: Path, name: str) -> Path:
    """Compile whole_rows.cpp; returns the library's path in the folder `home`.

    The file's name is `name`, followed by the hash of the file's content. The compiler writes to a temporary file,
    which is moved when it is complete. So no process loads a part of a file, even if several processes compile at the
    same time or one of them is killed.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "clang++"]
    with tempfile.TemporaryDirectory(dir=home, prefix=".compiling-", ignore_cleanup_errors=True) as folder:
        made, linked = f"{folder}/whole_rows.o", f"{folder}/whole_rows.so"
        for words in ([*FLAGS, "-c", str(SOURCES[0]), "-o", made], ["-shared", made, "-o", linked]):
            # messages stay bytes, in whatever encoding the compiler writes them
            subprocess.run(
                [*compiler, *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST
            )
        ctypes.CDLL(linked).forward_float.restype = None  # raises if the file is no library, or hides its functions
        with open(linked, "rb") as file:
            os.fsync(file.fileno())
            path = home / f"{name}-{short_hash(file.read())}.so"
        os.replace(linked, path)
    return path
