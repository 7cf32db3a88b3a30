"""The servers under test: vLLM (paged) and Hugging Face (contiguous)."""
