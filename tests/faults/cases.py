"""All cases, in the order of their modules: one module a kind of place from which wrong input comes."""

from __future__ import annotations

import cases_values

MODULES = (cases_values,)
CASES = [case for module in MODULES for case in module.CASES]
