"""A variant of the package is what its type says: nobody derives from it."""

from __future__ import annotations

import pytest
from conftest import ROOT, class_of, options_in, tunables

from roundround.kernels.variants import FinalVariants

GROUPS = ("pe", "softmax", "qk_norm", "gate", "data", "tokenizer")
VARIANTS = {
    class_of(group, name)
    for group in GROUPS
    for name in options_in(ROOT / "conf" / group)
    if tunables(group, name).get("_target_")
}


@pytest.mark.parametrize("variant", sorted(VARIANTS, key=lambda cls: cls.__name__))
def test_a_class_that_derives_from_a_variant_is_refused_with_a_way_out(variant: type) -> None:
    assert issubclass(variant, FinalVariants)
    base = variant.__bases__[0].__name__
    with pytest.raises(
        TypeError, match=f"^Mine cannot derive from {variant.__name__}.* derive from {base}(,| or | instead)"
    ):
        type("Mine", (variant,), {})
