"""Tasks whose answers are known; each generator is a few lines of numpy.

Tested by tests/data/tasks/test_task_contract.py, and each task with a solver by the test of its module.
"""
