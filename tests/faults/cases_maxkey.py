"""Wrong options of maxkey."""

from __future__ import annotations

from case import Case, of_words
from originals import MAXKEY

VALUES = {
    "seeds": ["0", "-1", "abc", "100000000", "1.5", "null", "''"],
    "max_steps": ["0", "abc", "-1", "1.5", "null"],
    "batch_size": ["0", "abc", "-1", "1000000000000", "null"],
    "min_items": ["0", "abc", "-1", "17"],
    "max_items": ["2", "100000000", "abc", "null"],
    "size_of_each_set": ["7", "abc", "null"],
    "test_sizes": [
        "[]", "[0]", "[2,1]", "[abc]", "[1000000000000]", "[2,2]", "[nan]", "16.5", "null", "abc", "[-1]", "''",
    ],
    "test_sets": ["0", "1.5", "-1", "abc", "1000000000000"],
    "evaluate": ["[foo]", "foo", "5", "null", "[[softmax]]"],
    "model.n_classes": ["0", "-1", "abc", "1.5"],
    "model.width": ["0", "-1", "10000000", "abc"],
    "model.scaled_logits": ["maybe"],
    "model.tanh_gelu": ["maybe"],
    "model.foo": ["1"],
    "+model.foo": ["1"],
    "model._target_": ["os.system", "null"],
    "run": ["nope", "last", "''", "/dev/null", "5", "x" * 5000],
    "resume": ["nope", "''", "last", "/dev/null", "/"],
    "device": ["cuda", "foo", "meta", "''"],
    "fit": ["abc", "2"],
    "fit_sizes": ["[]", "[0]", "[2,1]", "abc"],
    "fit_inputs": ["0", "-1", "abc"],
    "optim.lr": ["nan", "-1", "inf", "abc"],
    "optim.betas": ["[2,3]", "abc"],
    "optim": ["nope", "null"],
    "seed": ["-1", "99999999999999999999", "abc", "1.5"],
    "log_every": ["0", "abc", "-1"],
    "checkpoint_every": ["0", "abc", "-1"],
    "preset": ["foo", "../../x", "", "null", "rope/table2"],
    "normalisers": ["null", "5", "[]"],
    "normalisers.softmax": ["null", "5"],
    "normalisers.temperature_50.temperature": ["0", "nan"],
    "normalisers.nope": ["1"],
    "+normalisers.mine": ["5", "null", "[]", "{}", "{_target_:os.system,command:touch EXECUTED}"],
    "+softmax@normalisers.mine": ["nope", ""],
    "pe": ["rope"],
    "model": ["tiny"],
    "softmax": ["hard"],
    "logger": ["nope"],
    "trust": ["maybe"],
    "foo": ["1"],
}  # fmt: skip
NORMALISERS = [
    "--temp",
    "--temp=",
    "--temp=foo",
    "--temp=,",
    "--tmp=all",
    "--temp=softmax,foo",
    "--temp=all,all,x",
    "--temp=null",
]
TWO_OF_A_KIND = [("run=maxkey-run", "resume=maxkey-run")]
GOOD = [
    "seeds=1", "seed=4294967290", "min_items=16", "test_sizes=[4,8]", "size_of_each_set=true", "--temp=adaptive",
    "evaluate=[hard]", ("+softmax@normalisers.mine=top_k", "evaluate=[mine]"), "model.tanh_gelu=true",
]  # fmt: skip

CASES = [
    *of_words("maxkey", MAXKEY, VALUES),
    *of_words("maxkey", MAXKEY, NORMALISERS),
    *of_words("maxkey", ["maxkey", "logger=none"], TWO_OF_A_KIND, given=("maxkey-run",)),
    *of_words(
        "maxkey", ["maxkey", "resume=maxkey-run", "logger=none"], ["seeds=3", "model.width=64", "seed=7"],
        given=("maxkey-run",),
    ),
    *of_words("good maxkey", MAXKEY, GOOD, codes=(0,)),
    Case(
        name="good maxkey: evaluate a run again", args=["maxkey", "run=maxkey-run", "logger=none"],
        given=("maxkey-run",), codes=(0,),
    ),
    Case(
        name="good maxkey: resume a finished run", args=["maxkey", "resume=maxkey-run", "logger=none"],
        given=("maxkey-run",), codes=(0,),
    ),
]  # fmt: skip
