"""The experiments: training, comparisons, benchmarks, the paper's figures and tables, examples.

Run from the root of the repository, as in ``python -m experiments.paper.table1``; README.md here
lists all of them. Each package imports those before it only: recording, train, compare,
benchmarks, paper, examples.
"""
