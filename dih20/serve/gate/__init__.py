"""The known-answer gate: nothing is called ready before it has answered a known question."""
