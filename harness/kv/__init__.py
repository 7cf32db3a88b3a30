"""What a model's KV cache costs, and how many requests fit: pure arithmetic, no I/O.

::

    config (JSON) ─ fields ─ families ─ spec ─> ModelSpec ─ dtypes, bytes ─> bytes per token
    ModelSpec + engine (vLLM's settings) ─ paged, layouts ─> bytes set aside per request
    device memory ─ weights, budget ─> pool ─ sizing, lengths, capacity ─> requests that fit
    plan ─> all of it, with its working (explain); text ─> for a terminal
"""
