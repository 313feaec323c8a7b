"""The OpenAI-compatible server: one HTTP process that supervises one engine process per rank.

Runs inside the container or in a local environment (`python -m dih20.serve --settings FILE`);
imports nothing of the tool but its errors, so that it ships as a wheel of its own.
"""
