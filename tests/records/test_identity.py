"""Records of many runs in one table: each says which run, which model and what was varied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import Done

from roundround.records.run import identity, of_normaliser


def common(done: Done, *names: str) -> dict[str, object]:
    """The values of these fields, which all records of a run share."""
    assert done.code == 0, done.err
    found = [{name: record.get(name, "absent") for name in names} for record in done.results]
    assert all(record == found[0] for record in found)
    return found[0]


def test_records_of_training_and_of_every_look_at_the_model_belong_together(
    train: Callable[..., Done], roundround: Callable[..., Done], corpus: Path
) -> None:
    trained = train("pe=p_rope", "pe.p=0.5", "optim.lr=0.01", "seed=7", "trainer.max_steps=2")
    run = str(trained.directory)
    model = {"run": run, "model": "tiny", "data": "text", "data.path": str(corpus), "seed": 7, "optim.lr": 0.01}
    assert common(trained, "verb", "pe", "pe.p", "pe.theta", "softmax", "logger", "trainer.accelerator", *model) == {
        **model,
        "verb": "train",
        "pe": "p_rope",
        "pe.p": 0.5,
        "pe.theta": 10000.0,
        "softmax": "softmax",
        "logger": "absent",
        "trainer.accelerator": "cpu",
    }
    replaced = ["softmax=temperature", "softmax.temperature=0.5", "checkpoint=last"]
    evaluated = roundround("eval", f"run={run}", "length=16,32", "max_tokens=64", "logger=none", *replaced)
    assert common(
        evaluated, "verb", "pe", "pe.p", "softmax", "softmax.temperature", "checkpoint", "max_tokens", *model
    ) == {
        **model,
        "verb": "eval",
        "pe": "p_rope",
        "pe.p": 0.5,
        "softmax": "temperature",
        "softmax.temperature": 0.5,
        "checkpoint": "last",
        "max_tokens": 64,
    }
    assert {record["length"] for record in evaluated.results} == {16, 32}
    probed = roundround("probe", f"run={run}", "texts=shakespeare", "max_tokens=64", "rows=false", "logger=none")
    assert common(probed, "verb", "pe.p", "texts", "data", "run", "optim.lr") == {
        "verb": "probe",
        "pe.p": 0.5,
        "texts": "shakespeare",
        "data": None,
        "run": run,
        "optim.lr": 0.01,
    }


def manifest(verb: str, config: dict[str, object], **more: object) -> dict[str, object]:
    return {"verb": verb, "config": config, "overrides": [], "choices": {}, "facts": {}, "seed": None, **more}


def test_a_pretrained_model_is_named_by_its_path() -> None:
    config = {"model": {"path": "/models/story", "kind": "pretrained"}, "pe": None, "data": {"name": "x/y"}}
    found = identity(Path("out"), manifest("eval", config, choices={"model": "story", "data": "hub"}, run=None))
    assert found == {
        "verb": "eval",
        "run": None,
        "model": "story",
        "model.path": "/models/story",
        "pe": "its own",
        "softmax": "its own",
        "data": "hub",
        "data.name": "x/y",
        "seed": None,
    }


def test_a_list_is_text_and_an_option_of_a_group_its_name() -> None:
    config = {"optim": {"betas": [0.8, 0.9]}, "softmax": {"_target_": "x.Y", "coefficients": [1.5, 2]}, "outputs": "o"}
    typed = ["optim=adam_l2", "optim.betas=[0.8,0.9]", "outputs=o", "softmax=fitted", "-m"]
    choices = {"optim": "adam_l2", "softmax": "fitted", "experiment": None}
    found = identity(Path("out"), manifest("train", config, overrides=typed, choices=choices, seed=3))
    assert found == {
        "verb": "train",
        "run": "out",
        "softmax": "fitted",
        "softmax.coefficients": "1.5,2",
        "optim": "adam_l2",
        "optim.betas": "0.8,0.9",
        "seed": 3,
    }


def test_each_record_of_max_retrieval_has_the_numbers_of_its_own_normaliser() -> None:
    nodes = {"sharp": {"_target_": "x.Y", "temperature": 0.5}, "fitted": {"_target_": "x.Z", "coefficients": [0]}}
    told = manifest(
        "max-retrieval", {"normalisers": nodes, "seeds": 3, "seed": 0}, fit={"coefficients": [1, 2]}, seed=0
    )
    assert "seed" not in identity(Path("out"), told)
    assert of_normaliser(told, {"softmax": "sharp"}) == {"softmax.temperature": 0.5}
    assert of_normaliser(told, {"softmax": "fitted"}) == {"softmax.coefficients": "1,2"}
    assert of_normaliser(told, {"metric": "gains_from_paper"}) == {}
