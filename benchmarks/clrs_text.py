"""Writes examples of CLRS-Text as jsonl, which data=clrs_text_files reads; dm-clrs makes them.

    python -m venv clrs-env && clrs-env/bin/pip install dm-clrs==2.0.3      # 2.9 GB: it brings JAX and TensorFlow
    clrs-env/bin/python benchmarks/clrs_text.py train.jsonl --examples 100
    clrs-env/bin/python benchmarks/clrs_text.py test.jsonl --examples 25 --lengths test --first-seed 1000000
    roundround train data=clrs_text_files data.path=train.jsonl data.test_path=test.jsonl tokenizer=bytes

The file has N examples of each algorithm and length, each the first of a seed: first_seed, ..., first_seed + N - 1.
Markeeva et al. 2024, arXiv:2406.04229; lengths from their script generate_clrs_text.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from typing import Any

TRAINED = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)  # up to the longest of the algorithm
SHORTEST = 4  # in the test; strongly_connected_components has no shorter example
DECIMALS = 3  # of the numbers in the input, the rest cut off: the default of the authors' generator
# name, longest length in training, longest length in the test
TABLE = """activity_selector 31 40, articulation_points 19 19, bellman_ford 31 32, bfs 31 41, binary_search 31 64,
bridges 5 7, bubble_sort 10 11, dag_shortest_paths 19 19, dfs 23 20, dijkstra 28 25, find_maximum_subarray_kadane 31 64,
floyd_warshall 10 11, graham_scan 31 31, heapsort 10 11, insertion_sort 31 25, jarvis_march 12 13, kmp_matcher 31 64,
lcs_length 10 12, matrix_chain_order 10 12, minimum 31 64, mst_kruskal 10 10, mst_prim 28 26,
naive_string_matcher 31 64, optimal_bst 10 10, quickselect 31 64, quicksort 10 12, segments_intersect 31 64,
strongly_connected_components 15 16, task_scheduling 31 41, topological_sort 23 21"""
SIZES = {name: (int(trained), int(tested)) for name, trained, tested in map(str.split, TABLE.split(","))}


def lengths_of(algorithm: str, lengths: str) -> list[int]:
    """The lengths named by `train` or `test`, which are the paper's, or by numbers such as 4,5,10."""
    trained, tested = SIZES[algorithm]
    if lengths == "train":
        return [length for length in TRAINED if length <= trained]
    return list(range(SHORTEST, tested + 1)) if lengths == "test" else [int(length) for length in lengths.split(",")]


def example(clrs: Any, algorithm: str, length: int, *, seed: int, use_hints: bool) -> dict[str, object]:
    """The first example of the authors' generator with a seed."""
    sampler, _ = clrs.build_sampler(
        algorithm, num_samples=-1, length=length, seed=seed, track_max_steps=False, truncate_decimals=DECIMALS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graham_scan calls what numpy is going to leave out
        texts = clrs.clrs_text.clrs_utils.format_clrs_example(algorithm, sampler.next(1), use_hints=use_hints)
    return {"question": texts[0], "answer": texts[1], "algo_name": algorithm, "length": length, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--algorithms", default=",".join(SIZES), help="names, with commas; all thirty")
    parser.add_argument("--lengths", default="train", help="train, test (the paper's), or numbers from 4, with commas")
    parser.add_argument("--examples", type=int, default=100, help="how many of each algorithm and length")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--no-hints", action="store_true", help="the output alone, without the steps")
    args = parser.parse_args()
    if unknown := set(args.algorithms.split(",")) - set(SIZES):
        sys.exit(f"no algorithm {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    numbers = [int(word) if word.isdecimal() else 0 for word in args.lengths.split(",")]
    if args.lengths not in ("train", "test") and min(numbers) < SHORTEST:
        sys.exit(f"--lengths {args.lengths}: train, test, or numbers from {SHORTEST} with commas are possible")
    pairs = [(name, n) for name in args.algorithms.split(",") for n in lengths_of(name, args.lengths)]
    os.environ["JAX_PLATFORMS"] = "cpu"  # else it takes three quarters of an accelerator's memory
    try:
        import clrs
    except ImportError as error:
        sys.exit(f"dm-clrs cannot be imported ({str(error).splitlines()[0]}): pip install dm-clrs==2.0.3")
    with open(args.file, "w", encoding="utf-8") as file:
        for seed in range(args.first_seed, args.first_seed + args.examples):
            for name, length in pairs:
                print(json.dumps(example(clrs, name, length, seed=seed, use_hints=not args.no_hints)), file=file)


if __name__ == "__main__":
    main()
