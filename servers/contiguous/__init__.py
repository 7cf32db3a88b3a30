"""A contiguous-cache LLM server: transformers behind FastAPI, OpenAI-style.

One engine thread owns the model and its KV cache, which is one tensor
``[batch, kv_heads, tokens, head_dim]`` for the keys and one for the values of each layer.
``python -m servers.contiguous --help`` explains the policies.
"""
