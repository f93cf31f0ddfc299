"""Tables, figures and the page of a run.

Tested by tests/report and by the tests of the verbs whose results they show: tests/analysis/test_compare_command.py,
tests/probing/test_probe_figures.py, tests/papers/test_max_retrieval_command.py, tests/verbs/test_theory.py.
"""
