"""Tools shared by tests and benchmarks: comparing, tolerances, cases, timing, records of runs.

Modules are imported one by one; nothing here is needed to use the operators.
"""
