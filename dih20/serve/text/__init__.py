"""Text to tokens and back: tokenizer files, chat template, incremental decoding, stop strings."""
