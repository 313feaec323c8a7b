"""DeepSeek-V4.1 in plain torch: the reference model, written from its formulas.

It is the documentation of the model and the oracle of the port. It shares number formats with
h20_ops and nothing else: its attention, indexer and caches are a second, independent writing.
"""
