"""Tasks whose answer is known: one file each, whose generator is a few lines of numpy.

Tested by tests/data/tasks/test_task_contract.py, every one, and by tests/data/tasks/test_task_NAME.py with a solver.
"""
