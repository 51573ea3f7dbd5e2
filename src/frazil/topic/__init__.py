"""Topics at work: definition, state, admission, sequencing, history."""
