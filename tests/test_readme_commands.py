"""The rule by which numbers of a page are compared with what its commands print."""

from __future__ import annotations

import pytest
from readme_commands import is_printed


@pytest.mark.parametrize(
    ("page", "said", "right"),
    [
        ("softmax 97.0 94.7", "softmax  97.0   94.7  \n", True),
        ("softmax 97.0 94.7", "softmax  97.0   94.8  \n", True),  # a value between two may be rounded to either
        ("softmax 96.6 94.7", "softmax  97.0   94.7  \n", False),
        ("heads: 7 previous, 21 local", "heads: 7 previous, 22 local", False),
        ("parameters 1,250,432", "parameters 1,250,433", False),
        ("p 3e-8", "p 4e-8", True),
        ("p 3e-8", "p 5e-8", False),
        ("-0.969 (-0.985 to -0.954)", "0.969 (-0.985 to -0.954)", False),
        ("loss 8.32  512 tokens/s  mfu 3%  25:04 left", "loss 8.32 9 tokens/s mfu 40% 0:05 left", True),
        ("loss 8.32  512 tokens/s", "loss 8.52 512 tokens/s", False),
        ("/home/me/outputs/train/2026-01-02/10-11-12", "/tmp/x/outputs/train/2026-11-28/07-42-55", True),
        ("done in 3.1 s", "done in 11.6 s", True),
        ("fsdp2 with rope_500k", "fsdp3 with rope_500k", False),
        ("loss 5.0", "first loss 7.0, then loss 5.0", True),  # where it stands twice, once is enough
        ("a 1.0 b 2.0", "a 1.0 b 3.0; a 4.0 b 2.0", False),
    ],
)
def test_numbers_are_compared_where_the_pages_were_printed(page: str, said: str, right: bool) -> None:
    assert is_printed(page, said, same_machine=True) == right


@pytest.mark.parametrize(
    ("page", "said", "right"),
    [
        ("softmax 96.6 39.8", "softmax 97.0 40.4", True),
        ("softmax 96.6 39.8", "softmax 97.0 50.4", False),
        ("better (-0.079, p 0.005)", "better (-0.080, p 0.02)", True),
        ("better (-0.079, p 0.005)", "better (-0.179, p 0.005)", False),
        ("held-out loss 4.8266 at step 600", "held-out loss 4.8301 at step 600", True),
        ("held-out loss 4.8266 at step 600", "held-out loss 4.8266 at step 500", False),
    ],
)
def test_another_machine_may_round_otherwise(page: str, said: str, right: bool) -> None:
    assert is_printed(page, said, same_machine=False) == right
