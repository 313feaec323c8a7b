"""Time of each component of real-size decoder layers, with the engine's own modules on one GPU.

    python3 bench/engine_layers.py --folder DIR

One engine of six layers, one of each kind, with the released sizes and random weights, runs one decode
step of 64 sequences and one prefill of 4,096 tokens. Every operator call is kept with its arguments
(recording), replayed alone in a CUDA graph (replaying) and put beside what the card allows (works).
"""
