"""Tasks whose answer is known; a generator is a few lines of numpy.

Tested by tests/data/tasks/test_task_contract.py, every one, and by the test of its module with a solver.
"""
