"""Every shipped experiment runs two steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable
from itertools import product
from pathlib import Path

import pytest
from conftest import ROOT, Done, assert_refused, variants

EXPERIMENTS = ROOT / "conf" / "experiment"
NAMES = [path.relative_to(EXPERIMENTS).with_suffix("").as_posix() for path in sorted(EXPERIMENTS.rglob("*.yaml"))]


def test_every_experiment_is_run_here() -> None:
    folders = {"rope", "max-retrieval", "softmax", "length", "order", "recipe", "encodings_by_normalisers"}
    assert {name.split("/")[0] for name in NAMES} == folders


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("max-retrieval/")])
def test_two_steps_of_every_preset(roundround: Callable[..., Done], name: str) -> None:
    small = ["max_steps=2", "test_sizes=16", "test_sets=4", "logger=none", "device=cpu"]
    done = roundround("maxkey", f"preset={name.removeprefix('max-retrieval/')}", *small)
    assert done.code == 0, done.err
    assert done.manifest["config"]["seeds"] == {"quick": 3, "leftover": 5}[name.removeprefix("max-retrieval/")]


TABLE2 = ["nope", "rope", "rope_500k", "p_rope_reversed", "partial_rope", "p_rope_25", "p_rope"]
LADDERS = [
    "llama_2",
    "llama_3",
    "p_rope_paper",
    "gemma_4_global",
    "clipped_llama_3",
    "lfm3_global",
    "speedrun",
    "pythia",
    "qwen3_next",
]
PATTERNS = [(pattern, pe) for pattern in ("uniform", "local_global") for pe in ("rope", "nope", "p_rope_25")]
JOBS = {  # what a sweep of one seed and one learning rate trains, in order: pattern, pe, qk_norm
    "rope/table2": [("uniform", pe, "none") for pe in TABLE2],
    "rope/table2_paper": [("uniform", pe, "none") for pe in TABLE2],
    "rope/patterns": [(pattern, pe, norm) for pattern, pe in PATTERNS for norm in ("none", "rms")],
    "rope/plane": [("uniform", pe, "none") for pe in ("nope", *(f"ladder/{name}" for name in LADDERS))],
    "rope/drope": [("uniform", pe, "none") for pe in ("nope", "rope")],
    "rope/grammar": [("uniform", pe, "none") for pe in ("rope", "p_rope", "nope", "alibi")],
    "rope/turning": [("uniform", "p_rope", "none")] * 6,  # two bases by three shares of pairs
    "rope/distance": [("uniform", "p_rope", "none")] * 2,  # of twelve
    "rope/norm_band": [("uniform", "rope", "none")] * 2,  # of four bases
    "rope/p_rope_30m": [("uniform", pe, "none") for pe in ("rope", "p_rope")],
}


SELDOM = ("rope/patterns", "rope/plane", "rope/table2_paper")  # seven jobs or more, of what others have one of
SLOW = (*SELDOM, "rope/table2", "rope/turning", "rope/norm_band")  # of a text, as rope/grammar is


def seldom(names: Iterable[str], slow: Container[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in slow)) for n in names])


@seldom(SELDOM, SELDOM[1:])
def test_the_jobs_of_a_sweep_fit_the_models_that_they_train(name: str) -> None:
    from roundround.config.options import compose
    from roundround.trained.models import check_buildable

    sweep = compose("train", [f"experiment={name}"], None).hydra.sweeper.params
    usual = {"pattern": "uniform", "pe": "", "qk_norm": "none"}
    assert list(product(*(sweep.get(group, usual[group]).split(",") for group in usual))) == JOBS[name]
    for job in JOBS[name]:
        words = [f"{group}={option}" for group, option in zip(usual, job, strict=True)]
        assert check_buildable(compose("train", [f"experiment={name}", *words], None)) > 1000


@seldom([name for name in NAMES if name.startswith("rope/")], SLOW)
def test_two_steps_of_every_job(roundround: Callable[..., Done], fast: list[str], name: str) -> None:
    small = [*fast, "trainer.max_steps=2", "trainer.accumulate_grad_batches=1", "compile=false"]
    if name == "rope/drope":  # the model comes from a run
        begun = roundround("train", *fast, "trainer.max_steps=1", "validate_every=1")
        small = [word for word in small if not word.startswith(("model.", "tokenizer="))]
        small += [f"init=run:{begun.directory.absolute()}"]
    elif name.endswith("paper"):  # at full size
        small += ["model.head_dim=8"]
    elif name == "rope/distance":  # a task, with a vocabulary of its own
        small = ["logger=none", "trainer.accelerator=cpu", "trainer.max_steps=2", "seed=1", "batch_size=4"]
        small += ["data.validation_examples=4", "pe.theta=100", "pe.p=1,0.25"]
    elif name in ("rope/table2", "rope/grammar", "rope/turning", "rope/norm_band"):
        small += ["tokenizer=bpe", "tokenizer.vocab_size=300", "seed=1", "model.head_dim=8"]
        small += ["pe.theta=100,500000"] if name == "rope/norm_band" else []
    else:
        small += ["seed=1", "optim.lr=1e-3", "model.n_layers=4", "model.head_dim=32"]
    done = roundround("train", f"experiment={name}", *small)
    assert done.code == 0, done.err
    runs = [
        json.loads(path.read_text())
        for path in sorted(done.directory.glob("*/run.json"), key=lambda manifest: int(manifest.parent.name))
    ]
    assert {run["status"] for run in runs} == {"done"}
    assert [tuple(run["choices"][group] for group in ("pattern", "pe", "qk_norm")) for run in runs] == JOBS[name]
    assert {run["config"]["trainer"]["max_steps"] for run in runs} == {2}


@seldom([name for name in NAMES if name.startswith("recipe/")], ["recipe/speedrun_full"])
def test_two_steps_of_every_recipe(train: Callable[..., Done], name: str) -> None:
    small = ["trainer.max_steps=2", "compile=false", "model.head_dim=8", "data=text"]
    small += ["tokenizer=bytes"] if name.endswith("full") else ["tokenizer=bpe", "tokenizer.vocab_size=300"]
    done = train(f"experiment={name}", *small, "model.n_key_heads=2", "pe=p_rope", "softmax=input_sink", "gate=head")
    assert done.code == 0, done.err
    assert done.manifest["choices"]["optim"] == "muon_speedrun"
    assert done.manifest["config"]["pattern"]["layer"]["logit_scale"] == (0.12 if name.endswith("full") else 0.24)


def test_rope_is_not_dropped_from_a_run_that_nobody_named(roundround: Callable[..., Done]) -> None:
    assert_refused(roundround("train", "experiment=rope/drope", "pe=nope", "hydra.mode=RUN"), "DIR")


@pytest.mark.parametrize("setting", ["mix=conv", "pattern=hybrid"])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("order/")])
def test_two_steps_of_every_source_of_order(roundround: Callable[..., Done], name: str, setting: str) -> None:
    small = [
        "trainer.max_steps=2",
        "trainer.accelerator=cpu",
        "logger=none",
        "seed=1",
        "batch_size=4",
        "model.d_model=16",
    ]
    small += ["validation_tokens=256"] if name.endswith("text") else ["data=n_back", "data.validation_examples=4"]
    done = roundround("train", f"experiment={name}", setting, "model.head_dim=4", *small)
    assert done.code == 0, done.err


@pytest.mark.slow  # four jobs, of a text, as rope/grammar has
def test_two_steps_of_every_normaliser(train: Callable[..., Done]) -> None:
    small = ["trainer.max_steps=2", "model.head_dim=8", "seed=1", "pe=nope"]
    small += ["tokenizer=bpe", "tokenizer.vocab_size=300"]
    done = train("experiment=encodings_by_normalisers", *small)
    assert done.code == 0, done.err
    runs = [json.loads(path.read_text()) for path in sorted(done.directory.glob("*/run.json"))]
    assert [(run["status"], run["choices"]["softmax"]) for run in runs] == [
        ("done", softmax) for softmax in ("softmax", "adaptive_temperature_trained", "ssmax", "entmax15")
    ]


def test_every_variant_that_a_sweep_names_is_there() -> None:
    from omegaconf import OmegaConf

    for name in NAMES:
        sweep = OmegaConf.load(EXPERIMENTS / f"{name}.yaml").get("hydra", {}).get("sweeper", {}).get("params", {})
        for group in ("pe", "softmax"):
            assert group not in sweep or set(sweep[group].split(",")) <= set(variants(group)), name


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("max-retrieval/")])
def test_an_experiment_names_its_encoding_and_keeps_it_whatever_the_default_is(name: str) -> None:
    """One that a sweep over encodings trains, where it has such a sweep."""
    from omegaconf import OmegaConf

    given = OmegaConf.load(EXPERIMENTS / f"{name}.yaml")
    (named,) = [entry["override /pe"] for entry in given.defaults if "override /pe" in entry]
    sweep = given.get("hydra", {}).get("sweeper", {}).get("params", {})
    assert named in sweep.get("pe", named).split(",")


def test_the_default_encoding_is_the_one_of_a_llama() -> None:
    from roundround.config.options import compose

    assert compose("train", [], None).hydra.runtime.choices.pe == "rope"


LENGTHS = [name for name in NAMES if name.startswith(("length/", "softmax/recall"))]
# a model of one head, one task, and a search; the others are of another task or size; tests/data/tasks has the tasks
QUICK = ["length/mqar", "length/reverse", "length/solved", "softmax/recall"]


@seldom(LENGTHS, {*LENGTHS} - {*QUICK})
def test_two_steps_of_every_length_experiment(roundround: Callable[..., Done], name: str) -> None:
    """Its own task, at one encoding, one learning rate and the last normaliser that it names."""
    from omegaconf import OmegaConf

    small = ["trainer.max_steps=2", "trainer.accelerator=cpu", "logger=none", "seed=1", "optim.lr=1e-3", "pe=nape"]
    small += ["model.d_model=16", "model.n_layers=2", "model.d_mlp=0", "batch_size=4", "data.validation_examples=4"]
    sweeper = OmegaConf.load(EXPERIMENTS / f"{name}.yaml").get("hydra", {}).get("sweeper", {}).get("params", {})
    heads = 1 if name.startswith("length/mqar") else 2
    small += [f"softmax={sweeper.get('softmax', 'softmax').split(',')[-1]}", f"model.n_heads={heads}"]
    done = roundround("train", f"experiment={name}", *small, f"model.n_key_heads={heads}")
    assert done.code == 0, done.err
    runs = [json.loads(path.read_text()) for path in sorted(done.directory.glob("**/run.json"))]
    assert {run["status"] for run in runs} == {"done"}
    data = name.partition("/")[2].removesuffix("_paper").removesuffix("_control").removesuffix("_30m")
    assert {run["choices"]["data"] for run in runs} == {"reverse" if data == "solved" else data}


@pytest.mark.parametrize(("name", "small"), [
    ("clrs_text_small", ["model=tiny", "model.d_model=16"]),
    ("clrs_text_tuned", ["init=stories260k"]),
])  # fmt: skip
def test_two_steps_of_algorithms_with_and_without_adaptive_temperature(
    roundround: Callable[..., Done], here: Path, name: str, small: list[str]
) -> None:
    """With rows in the place of those that dm-clrs makes, in the files that the experiment names."""
    rows = [
        {"question": f"{algorithm}:\n{i}\n", "answer": f"{i % 7}\n\n", "algo_name": algorithm, "length": 4 + i % 5}
        for i in range(600)
        for algorithm in ("binary_search", "find_maximum_subarray_kadane", "minimum")
    ]
    for file in ("clrs_train.jsonl", "clrs_test.jsonl"):
        (here / file).write_text("\n".join(map(json.dumps, rows)))
    small = [*small, "seed=1", "logger=none", "batch_size=4", "data.validation_examples=4"]
    small += ["trainer.max_steps=2", "trainer.accelerator=cpu"]
    done = roundround("train", f"experiment=softmax/{name}", *small)
    assert done.code == 0, done.err
    runs = [json.loads(path.read_text()) for path in sorted(done.directory.glob("*/run.json"))]
    assert [(run["status"], run["choices"]["softmax"]) for run in runs] == [
        ("done", "softmax"), ("done", "adaptive_temperature_trained")
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_an_experiment_sets_is_what_runs(roundround: Callable[..., Done], name: str) -> None:
    from omegaconf import OmegaConf

    verb = "maxkey" if name.startswith("max-retrieval/") else "train"
    choice = f"preset={name.removeprefix('max-retrieval/')}" if verb == "maxkey" else f"experiment={name}"
    done = roundround(verb, choice, "--cfg", "job")
    assert done.code == 0, done.err
    wanted = OmegaConf.load(EXPERIMENTS / f"{name}.yaml")
    composed = OmegaConf.create(done.out)
    for key in wanted.keys() - {"defaults", "hydra"}:
        assert OmegaConf.merge({key: composed[key]}, {key: wanted[key]}) == {key: composed[key]}, key


def test_table2_is_seven_encodings_times_five_seeds_seed_by_seed() -> None:
    from omegaconf import OmegaConf

    params = OmegaConf.load(EXPERIMENTS / "rope" / "table2.yaml").hydra.sweeper.params
    assert len(params.pe.split(",")) == 7
    assert params.seed == "1,2,3,4,5"
    assert list(params) == ["seed", "pe"]  # the last one changes fastest


def test_copying_at_published_scale_has_the_symbols_of_the_paper(roundround: Callable[..., Done]) -> None:
    from omegaconf import OmegaConf

    symbols = {}
    for name in ("copy_paper", "repeat_paper", "copy", "repeat"):
        done = roundround("train", f"experiment=length/{name}", "--cfg", "job")
        assert done.code == 0, done.err
        symbols[name] = OmegaConf.create(done.out).data.n_symbols
    assert symbols == {"copy_paper": 100, "repeat_paper": 5750, "copy": 32, "repeat": 1024}
