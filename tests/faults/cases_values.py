"""Wrong values of `roundround train` on the command line, by group; and right ones beside them."""

from __future__ import annotations

from case import Case, of_words
from originals import TRAIN

MODEL = {
    "model.d_model": [
        "abc", "nan", "-16", "0", "17", "1.5", "1e30", "99999999999", "200000", "null", "[16]", "true", "''", "{}",
    ],
    "model.n_layers": ["0", "-1", "1.5", "inf", "abc", "null", "100000", "1000000000"],
    "model.n_heads": ["0", "3", "-4", "abc", "null", "1.5"],
    "model.n_key_heads": ["0", "3", "-1", "abc", "1.5"],
    "model.head_dim": ["3", "0", "-2", "abc"],
    "model.d_mlp": ["-1", "-344", "abc", "null", "1000000000000"],
    "model.train_length": ["0", "-1", "1000000000", "abc", "null", "1.5"],
    "model.norm_eps": ["-1", "nan", "abc", "null"],
    "model.initializer_range": ["-1", "nan", "inf", "abc"],
    "model.tied_embeddings": ["maybe", "2", "null"],
    "model.geglu": ["maybe", "2"],
    "model.scaled_embeddings": ["maybe"],
    "model.mlp": ["relu", "null"],
    "model.logit_cap": ["0", "-1", "nan", "abc"],
    "+model.d_modle": ["16"],
    "model.d_modle": ["16"],
    "model": ["hf", "gemma-7b", "nope", "null", "''", "5", "[tiny]", "../model/tiny", "stories260k"],
    "model._target_": ["os.system", "roundround.pe.rope.RoPE", "null"],
}  # fmt: skip
OPTIMISER = {
    "optim.lr": ["-1", "0x", "nan", "inf", "abc", "''", "null", "true", "[1]"],
    "optim.betas": ["[2,3]", "[0.9]", "[nan,0.9]", "abc", "[0.9,0.9,0.9]", "null", "[0.9,1]", "[-0.1,0.9]"],
    "optim.eps": ["-1", "nan", "abc"],
    "optim.weight_decay": ["-1", "nan", "abc", "null"],
    "optim.decay_biases": ["maybe"],
    "+optim.momentum": ["0.9"],
    "optim": ["sgd", "null", "''"],
    "optim._target_": ["torch.optim.SGD", "os.system", "5"],
    "schedule.warmup_steps": ["-1", "1.5", "nan", "abc", "null"],
    "schedule.final_fraction": ["-1", "2", "nan", "abc"],
    "schedule": ["nope", "null", "linear"],
    "schedule._target_": ["builtins.print", "null"],
}
TRAINING = {
    "seed": ["-1", "4294967296", "1.5", "abc", "nan", "null", "9" * 40, "9" * 5000, "[1]", "''"],
    "batch_size": ["0", "-1", "1.5", "abc", "null", "1000000000000", "9" * 5000],
    "validate_every": ["0", "-1", "null", "abc", "1.5"],
    "validation_tokens": ["0", "-1", "null", "abc"],
    "checkpoint_every": ["0", "-1", "''", "null", "abc"],
    "attention_stats_every": ["0", "-1", "1.5", "abc"],
    "compile": ["perhaps", "2", "null"],
    "trust": ["perhaps", "null"],
    "init": ["abc", "hf:", "hf:nope", "hf:/dev/null", "''", "5", "hf:.", "hf:" + "x" * 5000, "[hf:x]", "HF:x"],
    "resume": ["nope", "''", "/dev/null", "last", "/", "5", ".", "null/x", "x" * 5000, "~nobody-here/run", "[a]"],
    "logger": ["foo", "null", "''", "several", "[]", "[a", "[5]", "[csv,foo]", "[csv,none]", "[csv,csv]", "[csv],none"],
    "logger._target_": ["os.system", "null", "roundround.pe.rope.RoPE"],
    "+logger.name": ["mine"],
    "experiment": ["nope", "../x", "max-retrieval/quick"],
    "steps": ["5"],
    "lr": ["1"],
    "sede": ["1"],
}
TRAINER = {
    "trainer.max_steps": ["0", "-1", "1.5", "nan", "abc", "null", "[]", "true", "''"],
    "trainer.devices": ["0", "abc", "1000", "[]", "-5", "1.5", "null"],
    "trainer.accelerator": ["quantum", "gpu", "null", "tpu", "5"],
    "trainer.precision": ["8", "banana", "16-true", "bf16-true", "transformer-engine"],
    "trainer.strategy": ["foo", "fsdp", "deepspeed", "null"],
    "trainer.accumulate_grad_batches": ["0", "3", "-1", "1.5", "null"],
    "trainer.gradient_clip_val": ["-1", "0", "nan", "abc", "inf", "true"],
    "+trainer.gradient_clip_algorithm": ["banana"],
    "trainer.log_every_n_steps": ["0", "abc", "-1", "null"],
    "+trainer.num_nodes": ["0", "1.5"],
    "+trainer.deterministic": ["maybe", "2"],
    "+trainer.benchmark": ["maybe"],
    "+trainer.detect_anomaly": ["maybe", "null"],
    "+trainer.profiler": ["abc", "5"],
    "+trainer.foo": ["1"],
    "trainer": ["5", "null", "nope", "''"],
    "trainer._target_": ["os.system", "lightning.Fabric", "null"],
}
# what Lightning's Trainer would take and a run does not honour: refused by name
NOT_HONOURED = {
    "+trainer.fast_dev_run": ["true"],
    "+trainer.limit_train_batches": ["2"],
    "+trainer.overfit_batches": ["1"],
    "+trainer.max_epochs": ["2"],
    "+trainer.min_epochs": ["1"],
    "+trainer.min_steps": ["1"],
    "+trainer.max_time": ["'00:01:00'"],
    "+trainer.limit_val_batches": ["1"],
    "+trainer.limit_test_batches": ["1"],
    "+trainer.limit_predict_batches": ["1"],
    "+trainer.val_check_interval": ["1"],
    "+trainer.check_val_every_n_epoch": ["1"],
    "+trainer.num_sanity_val_steps": ["0"],
    "+trainer.inference_mode": ["true"],
    "+trainer.reload_dataloaders_every_n_epochs": ["1"],
    "+trainer.use_distributed_sampler": ["true"],
    "+trainer.logger": ["true"],
    "+trainer.enable_autolog_hparams": ["true"],
    "+trainer.default_root_dir": ["/dev/null", "there"],
    "+trainer.model_registry": ["x"],
    "+trainer.enable_checkpointing": ["true"],
    "+trainer.enable_progress_bar": ["true"],
    "+trainer.enable_model_summary": ["true"],
    "+trainer.barebones": ["true"],
    "+trainer.callbacks": ["[]", "[{_target_:os.system,command:touch EXECUTED}]"],
    "+trainer.plugins": ["abc", "[]"],
    "+trainer.sync_batchnorm": ["true"],
}
ENCODING = {
    "pe": [
        "", "null", "../../etc/passwd", "/etc/passwd", "[]", "'{}'", "\u00e9", "prope", "p_rope.yaml", ".", "5",
        "rope/x",
        "[rope,alibi]", "softmax", "pe/rope",
    ],
    "pe.theta": ["0", "-1", "nan", "inf", "abc", "''"],
    "pe._target_": [
        "os.system", "builtins.print", "builtins.eval", "''", "roundround.softmax.softmax.Softmax", "null", "5", "..",
        "subprocess.Popen", "roundround", "roundround.pe.base.PositionalEncoding", "roundround.pe.nope.NOPE", "a b",
    ],
    "+pe.foo": ["1"],
    "pe.foo": ["1"],
}  # fmt: skip
ENCODING_WORDS = [
    ("pe=rope_random", "pe.max_position=1"), ("pe=rope_random", "pe.max_position=abc"), ("pe=rope_random", "pe.seed=x"),
    ("pe=rope", "pe.p=0.5"), ("pe=learned", "pe.max_position=0"), ("pe=learned", "pe.init_std=-1"),
    ("pe=learned", "pe.max_position=8"), ("pe=t5_bias", "pe.num_buckets=0"), ("pe=t5_bias", "pe.max_distance=0"),
    ("pe=t5_bias", "pe.num_buckets=abc"), ("pe=fire", "pe.hidden=0"), ("pe=fire", "pe.init_c=nan"),
    ("pe=kerple", "pe.init_r1=-1"), ("pe=kerple", "pe.init_r2=abc"), ("pe=xpos", "pe.scale_base=0"),
    ("pe=xpos", "pe.gamma=nan"), ("pe=fox", "pe.init_std=-1"), ("pe=alibi", "pe.exponent=nan"),
    ("pe=nape", "pe.nope_heads=4"), ("pe=nape", "pe.nope_heads=half"),
    *(("pe=p_rope", f"pe.p={p}") for p in ("2", "-1", "nan", "abc", "null", "1.0001", "[0.5]", "true")),
    ("pe=partial_rope", "pe.p=2"), ("pe=p_rope_reversed", "pe.p=-0.5"), ("pe=sinusoidal", "pe.theta=0"),
]  # fmt: skip
NORMALISER = {
    "softmax": ["", "null", "softmaxx", "5", "../softmax/hard", "rope"],
    "softmax._target_": ["os.system", "torch.softmax", "null", "roundround.pe.rope.RoPE"],
    "+softmax.foo": ["1"],
    "softmax.temperature": ["1"],
}
NORMALISER_WORDS = [
    ("softmax=top_k", "softmax.k=0"), ("softmax=top_k", "softmax.k=1.5"), ("softmax=top_k", "softmax.k=abc"),
    ("softmax=temperature", "softmax.temperature=0"), ("softmax=temperature", "softmax.temperature=nan"),
    ("softmax=temperature", "softmax.temperature=-1"), ("softmax=temperature", "softmax.temperature=null"),
    ("softmax=learned_temperature", "softmax.temperature=0"), ("softmax=sink", "softmax.init_logit=nan"),
    ("softmax=adaptive_temperature", "softmax.coefficients=[]"),
    ("softmax=adaptive_temperature", "softmax.coefficients=[nan,1]"),
    ("softmax=adaptive_temperature", "softmax.coefficients=abc"),
    ("softmax=adaptive_temperature", "softmax.coefficients=[a,b]"),
    ("softmax=adaptive_temperature", "softmax.coefficients=null"),
    ("softmax=adaptive_temperature", "softmax.min_entropy=nan"),
    ("softmax=adaptive_temperature", "softmax.in_training=maybe"),
    ("softmax=alpha_entmax", "softmax.alpha=0"), ("softmax=alpha_entmax", "softmax.alpha=nan"),
    ("softmax=alpha_entmax", "softmax.alpha=abc"), ("softmax=alpha_entmax", "softmax.learned=maybe"),
    ("softmax=as_entmax", "softmax.delta=nan"), ("softmax=as_entmax", "softmax.gamma_range=abc"),
    ("softmax=log_n", "softmax.n_train=0"), ("softmax=log_n", "softmax.n_train=1"),
    ("softmax=log_n", "softmax.n_train=abc"), ("softmax=ssmax", "softmax.s=nan"),
    ("softmax=ssmax", "softmax.bias=maybe"), ("softmax=ssmax", "softmax.scaled_heads=4"),
    ("softmax=as_entmax", "softmax.start=1"), ("softmax=as_entmax", "softmax.scaled_heads=last"),
    ("softmax=soft_cap", "softmax.cap=0"), ("softmax=soft_cap", "softmax.cap=-1"),
    ("softmax=soft_cap", "softmax.cap=x"),
    ("softmax=softpick", "softmax.eps=-1"), ("softmax=softpick", "softmax.eps=nan"),
]  # fmt: skip
TOKENIZER_WORDS = [
    ("tokenizer=nope",), ("tokenizer=null",), ("tokenizer=",), ("tokenizer.vocab_size=7",),
    ("tokenizer=bpe", "tokenizer.vocab_size=0"), ("tokenizer=bpe", "tokenizer.vocab_size=256"),
    ("tokenizer=bpe", "tokenizer.vocab_size=abc"), ("tokenizer=bpe", "tokenizer.vocab_size=null"),
    ("tokenizer=bpe", "tokenizer.vocab_size=1000000000000"), ("tokenizer=bpe", "tokenizer.vocab_size=4294967297"),
    ("tokenizer=bpe", "tokenizer.max_train_bytes=0"), ("tokenizer=bpe", "tokenizer.max_train_bytes=abc"),
    ("tokenizer=hf",), ("tokenizer=hf", "tokenizer.name="), ("tokenizer=hf", "tokenizer.name=../../nowhere"),
    ("tokenizer=hf", "tokenizer.name=a b/c?d"), ("tokenizer=hf", "tokenizer.name=/"),
    ("tokenizer=hf", "tokenizer.name=null"), ("tokenizer=hf", "tokenizer.name=5"),
    ("tokenizer=hf", "tokenizer.name=" + "x" * 5000), ("tokenizer=hf", "tokenizer.name=owner/name"),
    ("tokenizer=hf", "tokenizer.name=."), ("tokenizer=hf", "tokenizer.name=$(touch EXECUTED)"),
    ("tokenizer=gemma",), ("tokenizer._target_=os.system",),
]  # fmt: skip
DATA = {
    "data.held_out": ["0", "1", "-1", "nan", "2", "abc", "null"],
    "data.max_chars": ["0", "-1", "abc", "1.5"],
    "data.keep_chars": ["[5,1]", "[1]", "abc", "[-1,5]", "5", "[1,2,3]", "[nan,5]", "[100000000,200000000]"],
    "data.column": ["[]", "{}", "[{}]"],
    "data.split_regex": ["(", "'[z'", "'*'", "'(?P<a>'", "[]"],
    "data.path": [
        "", "[]", "null", "nope.txt", "nope/*.txt", "/dev/null", "'[]'", "'*'", "~nobody-here/x.txt", "/proc/self/mem",
        "'\n'", "''", "[a.txt,'']", "x" * 5000 + ".txt", "'nope[.txt'", "5", "http://a.b/c.txt",
    ],
    "data._target_": ["os.system", "null", "roundround.pe.rope.RoPE"],
    "+data.foo": ["1"],
    "data.max_documents": ["5"],
    "text": ["", "''", "null", "nope.txt", "[]"],
}  # fmt: skip
CORPORA = ["nope", "null", "", "hub", "5", "wikitext103", "wikipedia", "fineweb_edu", "text"]
HUB_WORDS = [
    ("data=hub", "data.name=" + name) for name in ("", "''", "owner/name", "/", "../x", "a b", "x" * 500)
] + [
    ("data=hub", "data.name=owner/name", option)
    for option in (
        "data.split=", "data.streaming=maybe", "data.max_documents=0", "data.max_documents=abc", "data.shuffle_seed=x",
        "data.column=[]", "data.held_out=2", "data.document_start=(", "data.revision=nope",
    )
]  # fmt: skip
GOOD = [
    "model.d_model=32", "model.n_layers=2", "model.head_dim=8", "model.tied_embeddings=false", "optim.lr=1e-4",
    "optim.betas=[0.8,0.99]", "optim=adam_l2", "schedule=wsd", "schedule.warmup_steps=0", "seed=4294967295",
    "batch_size=3", "validate_every=1", "checkpoint_every=1", "trainer.max_steps=1", "trainer.precision=bf16-mixed",
    "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=null", "+trainer.detect_anomaly=true",
    "+trainer.profiler=simple", "pe=alibi", "pe=rope_500k", "softmax=sink", ("pe=p_rope", "pe.p=0"),
    ("pe=p_rope", "pe.p=1"), "data.held_out=0.5", "data.max_chars=300", "data.keep_chars=[50,5000]",
    "data.split_regex='\\n'",
    ("tokenizer=bpe", "tokenizer.vocab_size=300"), "model.d_mlp=0",
    ("pe=nape", "softmax=as_entmax", "softmax.delta=0", "softmax.start=1", "softmax.scaled_heads=0.5"),
]  # fmt: skip
INFERENCE_ONLY = ["softmax=top_k", ("softmax=adaptive_temperature", "softmax.coefficients=[-0.1,0.2]")]
EITHER = [
    # a diverged run is told from one that goes on, but neither is wrong input
    Case(
        name="values of the optimiser: a loss above 709 nats",
        args=(*TRAIN, "optim.lr=1e3", "schedule.warmup_steps=0", "trainer.gradient_clip_val=null"),
        codes=(0, 1),
    ),
    Case(name="values of the optimiser: optim.lr=1e30", args=(*TRAIN, "optim.lr=1e30"), codes=(0, 1, 2)),
    # the text is short; a regular expression that needs exponential time may also be refused
    Case(
        name="values of the data: a regex that backtracks", args=(*TRAIN, "data.split_regex='(a|aa)+$'"), codes=(0, 2),
    ),
    # it cuts everywhere, or nowhere
    Case(name="values of the data: an empty regex", args=(*TRAIN, "data.split_regex=''"), codes=(0, 2)),
    # more than there is: all of it
    Case(
        name="values of the training: validation_tokens=10^18", args=(*TRAIN, f"validation_tokens={10**18}"),
        codes=(0, 2),
    ),
]  # fmt: skip

WITHOUT_DATA = [word for word in TRAIN if not word.startswith("data")]

CASES = [
    *of_words("values of the model", TRAIN, MODEL),
    *of_words("values of the optimiser", TRAIN, OPTIMISER),
    *of_words(
        "values of the optimiser", [*TRAIN, "schedule=wsd"], ["schedule.decay_fraction=2", "schedule.decay_fraction=x"]
    ),
    *of_words("values of the training", TRAIN, TRAINING),
    *of_words("values of the trainer", TRAIN, TRAINER | NOT_HONOURED),
    *of_words(
        "values of the trainer", TRAIN, [("trainer.gradient_clip_val=null", "+trainer.gradient_clip_algorithm=norm")]
    ),
    *of_words("values of the encoding", TRAIN, ENCODING),
    *of_words("values of the encoding", TRAIN, ENCODING_WORDS),
    *of_words("values of the normaliser", TRAIN, NORMALISER),
    *of_words("values of the normaliser", TRAIN, NORMALISER_WORDS),
    *of_words("values of the tokenizer", TRAIN, TOKENIZER_WORDS),
    *of_words("values of the data", TRAIN, DATA),
    *of_words("values of the data", WITHOUT_DATA, HUB_WORDS),
    *of_words("values of the data", WITHOUT_DATA, {"data": CORPORA}),
    *of_words("good values", TRAIN, GOOD, codes=(0,)),
    *of_words("good values", WITHOUT_DATA, ["data=pydoc"], codes=(0,)),
    *of_words("good values", TRAIN, INFERENCE_ONLY, codes=(0,), notes=["acts at inference only"]),
    *EITHER,
]
