"""Who plays: policies (vLLM, transformers, scripted) and the arena that lets them play."""
