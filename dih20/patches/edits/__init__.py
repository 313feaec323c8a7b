"""Edits by symbol: found with LibCST, laid into the text as marked blocks that can be taken out again."""
