"""Wrong options of eval, probe and export, on a sound run or the packaged model."""

from __future__ import annotations

from case import Case, of_words
from damage import holding
from originals import PLAIN_TEXT

EVAL = ["eval", "run=run", "length=32", "max_tokens=64", "logger=none"]
PROBE = ["probe", "run=run", "max_tokens=200", "logger=none"]
PROBE_LLAMA = ["probe", "model=hf", "max_tokens=100", "logger=none"]
EXPORT = ["export", "run=run"]
RUN = {"given": ("run",)}

OF_EVAL = {
    "length": [
        "0", "-1", "abc", "nan", "1.5", "[]", "null", "1000000000", "1" + "0" * 21, "[32,abc]", "''", "[32,32.5]",
        "true",
        "[[32]]", "9" * 5000, "[32,0]",
    ],
    "stride": ["0", "-1", "33", "abc", "1.5", "nan", "''", "[16]", "true"],
    "bos": ["maybe", "2", "''", "null", "[true]", "yes please"],
    "max_tokens": ["0", "-1", "abc", "1", "1.5", "nan", "''"],
    "batch_tokens": ["0", "abc", "-1", "1.5", "null"],
    "device": ["foo", "cuda", "cuda:99", "meta", "''", "mps", "null", "5", "cpu:x", "xla"],
    "checkpoint": [
        "../../x", "''", "step-1", "step-99999999", "best/..", "null", "step-\u0663", "/etc", "x" * 5000, "BEST",
    ],
    "softmax": ["ssmax", "nope", "''", "5", "sink", "alpha_entmax_learned"],
    "pe": ["learned", "t5_bias", "nope_", "fire", "5"],
    "model": ["tiny", "hf", "nope", "stories260"],
    "data": ["text", "hub", "wikitext103", "nope"],
    "text": ["", "/nope.txt", "[]"],
    "trust": ["abc", "null"],
    "dispersion": ["abc", "2"],
    "tasks": ["arc_easy", "lm_eval:", "''", "5", "null", "[lm_eval:a,'']", "[[lm_eval:a]]"],
    "tasks_path": ["/nope", "''", "run", "5"],
    "foo": ["1"],
    "+foo": ["1"],
    "seed": ["1"],
    "resume": ["run"],
    "to": ["there"],
    "logger": ["nope", "''"],
    "outputs": ["/dev/null", ""],
}  # fmt: skip
OF_PROBE = {
    "prompt": ["''", "[]"],
    "texts": ["foo", "''", "5", "../x"],
    "length": ["1", "abc", "0", "-5", "1.5", "1000000000"],
    "bos": ["maybe", "true", "null"],
    "max_documents": ["0", "abc", "-1", "1.5"],
    "max_tokens": ["0", "abc", "-1"],
    "batch_tokens": ["0", "abc", "null"],
    "ablate": [
        "foo", "lowest:2", "lowest:nan", "lowest:", ":0.5", "[curve,lowest:0.25]", "lowest:-1", "lowest:0", "''", "5",
        "lowest:abc", "middle:0.5", "[lowest:0.25,foo]", "lowest:0.25:0.5", "curve:1", "null",
    ],
    "rows": ["abc", "2"],
    "entropy": ["abc"],
    "model": ["hf", "smollm2-135m", "tiny", "nope", "gemma-7b"],
    "data": ["text", "nope"],
    "text": ["/nope.txt", ""],
    "device": ["cuda", "foo", "meta"],
    "checkpoint": ["x", "step-77"],
    "pe": ["nope_", "learned"],
    "softmax": ["nope_", "sink"],
    "seed": ["1"],
}  # fmt: skip
OF_LLAMA = {
    "model.dtype": ["foo", "8", "null", "int8", "complex64"],
    "model.offload": ["abc", "2"],
    "model.trust_remote_code": ["abc", "2"],
    "model.pickled": ["2", "abc"],
    "model.special_tokens": ["foo", "null"],
    "model.foo": ["1"],
    "+model.device_map": ["auto"],
    "pe": ["alibi", "learned", "nope_"],
    "softmax": ["nope_"],
    "length": ["1", "1000000000"],
}
PLACES = [
    "''",
    "nope/nope",
    "/dev",
    "/dev/null",
    "a b",
    "../../..",
    "x" * 500,
    "https://x.y/z",
    "null",
    "$(touch EXECUTED)",
]
OF_EXPORT = {
    "to": [
        "''", "/dev/null", "/proc/nope", "null", "/", ".", "x" * 300, "/dev/full/x", "run", "run/x/../..",
        "~nobody-here/x",
        "[a]", "5/" + "x/" * 3000,
    ],
    "to=there checkpoint": ["x", "step-99999999"],
    "to=there device": ["cpu"],
    "to=there data": ["nope"],
    "to=there trust": ["abc"],
    "to=there pe": ["rope"],
}  # fmt: skip
RUNS = [
    "nope",
    "''",
    "/dev",
    "/dev/null",
    "5",
    "~/nope",
    "~nobody-here/x",
    "last/..",
    "$(touch EXECUTED)",
    "x" * 5000,
    "null",
    "[]",
]


THEORY = [
    "rope.nope", "rope", "5", "claim=", "claim=[a,b]", "claim=null", "data=stories", "texts=sums", "pe=rope",
    "run=nope",
    ("rope.lemma_a_1", "model=stories260k"), ("rope.lemma_a_1", "model=tiny"), ("rope.lemma_a_1", "device=nope"),
    ("rope.thm_6_1", "model=stories260k", "pe=nope"), ("rope.lemma_a_1", "model=stories260k", "run=last"),
    ("rope.lemma_a_1", "rope.lema_a_2"), "checkpoint=worst", "seed=3",
]  # fmt: skip

REPRODUCE = [
    "rope.nope", "rope", "5", "item=", "item=[a,b]", "item=null", "alll", "rope.fig1,rope.fig2", "rope.fig3",
    ("rope.fig1", "rope.fgi2"), ("rope.fig1", "device=nope"), ("rope.fig1", "model=tiny"), ("rope.fig3", "model=tiny"),
    ("rope.fig3", "model=hf"), ("rope.fig3", "model=hf", "model.path=nope"), ("rope.fig1", "model=nope"),
    "model=stories260k", "data=pydoc", "pe=rope", "run=last", "write_docs=5", "--write-doc", "write_docs=null",
    ("rope.fig1", "outputs=/dev/null/x"), "softmax.fig7", "trust=5", "text=nope",
]  # fmt: skip

BENCH = [
    "optim.lr=1", "set=v9", "set=", "set=v1/language", "size=huge", "size=null", "seeds=0", "seeds=abc", "seed=-1",
    "nope.json", "/dev/null", "baseline=pe=nope_at_all", "baseline=", "baseline=[", "device=nope", "to=/dev/null/x",
    "where=[a]", "pe=", "pe=prope", "softmax=softmx", "pe.p=2", ("pe=p_rope", "pe.p=abc"), "tune=abc", "data=stories",
    "run=last", "format=csv", "experiment=x",
]  # fmt: skip

CASES = [
    *of_words("bench", ["bench"], BENCH),
    *of_words("good bench", ["bench"], ["pe=rope"], codes=(0,), notes=[r"^\+ better, - worse than rope"]),
    *of_words("good bench", ["bench"], [("softmax=ssmax", "to=cited")], codes=(0,), notes=["^[+] better", "to cite"]),
    *of_words("reproduce", ["reproduce"], REPRODUCE),
    *of_words("good reproduce", ["reproduce"], ["rope.fig1", ("item=rope.fig1", "device=cpu")], codes=(0,)),
    *of_words("theory", ["theory"], THEORY),
    *of_words("good theory", ["theory"], ["rope.lemma_a_1", ("claim=rope.lemma_a_3", "device=cpu")], codes=(0,)),
    *of_words("eval", EVAL, OF_EVAL, **RUN),
    *of_words("eval", EVAL, [("dispersion=true", "softmax=temperature", "softmax.temperature=nan")], **RUN),
    *of_words(
        "eval", EVAL, [("length=[16,32]", "stride=17"), ("bos=true", "model=stories260k"), ("pe=rope", "pe.p=1")],
        **RUN,
    ),
    *of_words("eval without a run", ["eval", "logger=none"], {"run": RUNS}),
    *of_words("eval without a run", ["eval"], ["logger=none", "checkpoint=last", "run=last"]),
    *of_words("probe", PROBE, OF_PROBE, **RUN),
    *of_words(
        "probe", PROBE,
        [("prompt=maximum", "ablate=lowest:0.25"), ("texts=sums", "data=pydoc"), ("run=run", "model=stories260k")],
        **RUN,
    ),
    *of_words(
        "probe without a run", ["probe", "logger=none"], {"run": RUNS[:8], "model": ["nope", "tiny", "''", "gemma-7b"]},
    ),
    *of_words("probe a model", PROBE_LLAMA, {"model.path": PLACES}),
    *of_words("probe a model", [*PROBE_LLAMA, "model.path=llama"], OF_LLAMA, given=("llama",)),
    *of_words("eval a model", ["eval", "model=hf", "logger=none", f"text={PLAIN_TEXT}"], {"model.path": PLACES}),
    *[
        Case(name=case.name.replace("to=there ", ""), args=[*EXPORT, *case.args[-1].split(" ", 1)], given=("run",))
        for case in of_words("export", EXPORT, OF_EXPORT)
    ],
    *of_words("export", EXPORT, [(), ("to",), ("to=a", "to")], **RUN),
    *of_words(
        "export without a run", ["export", "to=there"], ["run=nope", "run=last", "run=/dev/null", "run=''", "run=5"],
    ),
    Case(name="export: into a file", args=[*EXPORT, "to=there"], given=("run",), prepare=holding({"there": "x"})),
    Case(
        name="export: into a full folder", args=[*EXPORT, "to=there"], given=("run",),
        prepare=holding({"there/x": "x"}),
    ),
    Case(
        name="export: into a dead link", args=[*EXPORT, "to=there"], given=("run",),
        prepare=lambda folder: (folder / "there").symlink_to("gone"),
    ),
    Case(
        name="export: below a file", args=[*EXPORT, "to=file/there"], given=("run",), prepare=holding({"file": "x"}),
    ),
    Case(
        name="export: into a read-only folder", args=[*EXPORT, "to=there/x"], given=("run",), ordinary_user=True,
        prepare=lambda folder: (folder / "there").mkdir(mode=0o555),
    ),
    # what the same words do where nothing is wrong
    *of_words(
        "good eval", EVAL,
        [
            "bos=false", "stride=16", "length=[16,32]", "checkpoint=last", "checkpoint=step-00000004", "device=cpu",
            "softmax=temperature", f"text={PLAIN_TEXT}", "max_tokens=32",
        ],
        codes=(0,), **RUN,
    ),
    *of_words(
        "good probe", PROBE, ["rows=false", "max_documents=1", "ablate=lowest:0.5", "prompt=abc"], codes=(0,), **RUN,
    ),
    *of_words(
        "good probe", PROBE_LLAMA, [("model.path=llama", "rows=false", "entropy=false")], codes=(0,), given=("llama",),
    ),
    Case(name="good export: a new folder", args=[*EXPORT, "to=there"], given=("run",), codes=(0,), patience=120),
    # nothing said: the packaged model
    Case(name="good probe: alone", args=["probe", "logger=none"], codes=(0,), patience=180),
    Case(
        name="good eval: model=stories260k", args=["eval", "model=stories260k", "logger=none"], codes=(0,),
        patience=180,
    ),
    Case(
        name="good probe: model=stories260k", args=["probe", "model=stories260k", "max_tokens=100", "logger=none"],
        codes=(0,),
    ),
    # any text is a prompt; one that is no text may be refused
    *of_words(
        "odd prompts", [*PROBE, "rows=false"],
        [
            "prompt='\x1b[31m\x07'", "prompt=a", b"prompt=\xff\xfe".decode("utf-8", "surrogateescape"),
            "prompt='" + "ab " * 30000 + "'",
        ],
        codes=(0, 2), **RUN,
    ),
]  # fmt: skip
