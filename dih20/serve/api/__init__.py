"""The HTTP side: OpenAI routes, health, metrics, the status page."""
