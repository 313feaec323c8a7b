"""Whether an engine's settings start with the released model, and what fits on a card.

rules.require_startable(engine, model=V41_FLASH) -> list[Problem]   ConfigError for what the engine would refuse
rules.problems_of(engine, model) -> list[Problem]                   the same as values; pure
memory.memory_of(engine, model, card) -> Memory                     bytes per GPU, cache tokens; pure
"""
