"""All cases, in the order of their modules: one module a kind of place from which wrong input comes."""

from __future__ import annotations

import cases_cache
import cases_folders
import cases_manifests
import cases_maxkey
import cases_models
import cases_prepare
import cases_runs
import cases_surroundings
import cases_sweeps
import cases_tasks
import cases_text
import cases_values
import cases_verbs
import cases_words

MODULES = (
    cases_values, cases_words, cases_verbs, cases_maxkey, cases_text, cases_cache, cases_manifests, cases_runs,
    cases_models, cases_prepare,
    cases_folders, cases_surroundings, cases_sweeps,
    cases_tasks,
)  # fmt: skip
CASES = [case for module in MODULES for case in module.CASES]
