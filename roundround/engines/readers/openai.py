"""A server that speaks the OpenAI protocol: vLLM, SGLang and others.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from roundround.engines.engine import Answers, Engine
from roundround.support.errors import UserError, one_line


@final
@dataclass(kw_only=True)
class OpenAI(Engine):
    """A server's `/v1/completions` with `echo` and `logprobs`, asked for a prompt of ids.

    The server answers a case if one of its models has the name CASE, or CASE/transformers5 at the end of its name.
    """

    url: str
    timeout: float

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        case, form = checkpoint.parts[-2:]
        served = [model["id"] for model in self.answer("models")["data"]]
        name = next((one for one in served if one == case or one.endswith(f"{case}/{form}")), None)
        if name is None:
            return []
        asked = {"model": name, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        given: list[float] = (self.answer("completions", asked)["choices"][0].get("logprobs") or {}).get(
            "token_logprobs", []
        )
        if len(given) < len(ids):
            raise UserError(f"{self.url} gives no log-probabilities of the prompt; it must support echo with logprobs")
        return given[1 : len(ids)]

    def answer(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the server answers. Raises UserError if it does not answer, and RuntimeError if it refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(
            f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")[:200]) from error
        except (URLError, OSError, ValueError) as error:
            raise UserError(f"engine.url={self.url} does not answer {path}: {one_line(error)}") from error
