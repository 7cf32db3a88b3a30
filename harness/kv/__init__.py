"""What a model's KV cache costs, and how many requests fit; pure."""
