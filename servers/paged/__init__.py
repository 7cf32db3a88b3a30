"""How vLLM is launched, on a GPU and on a CPU."""
