"""Tasks whose answers are known; each generator is a few lines of numpy.

Each is tested by tests/data/tasks/test_task_contract.py, and with a solver by the test of its module.
"""
