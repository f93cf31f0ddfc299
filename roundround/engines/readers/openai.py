"""A server that speaks the OpenAI protocol: vLLM, SGLang and others.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from roundround.engines.cases import Case
from roundround.engines.engine import Answers, Engine
from roundround.support.errors import UserError, one_line


@final
@dataclass(kw_only=True)
class OpenAI(Engine):
    """A server's `/v1/completions` with `echo` and `logprobs`, asked for a prompt of ids.

    The server answers a form of a case if one of its models has a name that ends with CASE/transformers5 (or 4). It
    answers a case, with an unknown form, if one of its models has the name CASE.
    """

    url: str
    timeout: float

    def checkpoints(self, case: Case) -> Mapping[str, Path]:
        return {"": case.folder} if case.folder.name in self.served else super().checkpoints(case)

    @cached_property
    def served(self) -> list[str]:
        return [str(name) for name in self.answer("models", lambda said: [model["id"] for model in said["data"]])]

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        case, form = ("", *checkpoint.parts)[-2:]  # of an unknown form: the folder of the suite, and the case
        name = next((one for one in self.served if one == form or f"/{one}".endswith(f"/{case}/{form}")), None)
        if name is None:
            return f"the server has {', '.join(self.served) or 'no model'}"
        asked = {"model": name, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        given = self.answer("completions", lambda said: said["choices"][0].get("logprobs") or {}, asked)
        if len(given.get("token_logprobs") or []) < len(ids):
            raise RuntimeError(
                f"{self.url} gives no log-probabilities of the prompt; it must support echo with logprobs"
            )
        return list(given["token_logprobs"][: len(ids)])

    def answer(self, path: str, part: Callable[[Any], Any], body: dict[str, Any] | None = None) -> Any:
        """A part of the server's answer. Raises RuntimeError if it has none, and UserError if there is no body."""
        url, kind = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}", RuntimeError if body else UserError
        try:
            request = Request(url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
            with urlopen(request, timeout=self.timeout) as answer:
                return part(json.load(answer))
        except HTTPError as error:
            raise kind(f"{url} answers with status {error.code}: {error.read(200).decode(errors='replace')}") from error
        except (OSError, HTTPException) as error:
            raise kind(f"{url} does not answer (timeout {self.timeout:g} s): {one_line(error)}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise kind(f"{url} does not speak the OpenAI protocol: {one_line(error)}") from error
