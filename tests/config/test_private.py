"""The private API of Hydra and OmegaConf that `config/private.py` uses, in the versions that it was written for."""

from __future__ import annotations

import ast
import re

import hydra
import omegaconf
import pytest
from conftest import ROOT
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from roundround.config.private import collect_jobs, result_of, where


def test_the_versions_are_those_that_were_read() -> None:
    assert (hydra.__version__[:3], omegaconf.__version__[:3]) == ("1.3", "2.3")


def test_a_node_says_where_it_stands() -> None:
    assert where(OmegaConf.create({"a": {"b": {"c": 1}}}).a.b) == "a.b"


def test_the_result_of_a_job_is_collected_and_only_expected_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobReturn, "return_value", JobReturn.return_value)  # put back at the end
    finished = collect_jobs(KeyError)
    for error in (KeyError("passed over"), ValueError("raised")):
        job = JobReturn(status=JobStatus.FAILED)
        job.return_value = error
        if isinstance(error, ValueError):
            with pytest.raises(ValueError, match="raised"):
                job.return_value  # noqa: B018
        else:
            assert job.return_value is error
        assert result_of(finished[-1]) is error


def test_no_other_module_uses_it() -> None:
    """Modules of Hydra's and methods of OmegaConf's nodes that begin with an underscore."""
    methods = {name for name in dir(omegaconf.DictConfig) if re.match("_[a-z]", name)} | {"_return_value", "_query"}
    found = []
    for path in (ROOT / "roundround").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_private = isinstance(node, ast.ImportFrom) and str(node.module).startswith("hydra._")
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                is_private = node.attr in methods
            if is_private and path.name != "private.py":
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
