"""FastAPI + transformers behind an OpenAI-style API, with a contiguous KV cache."""
