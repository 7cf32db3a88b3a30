"""What wants a GPU, and runs without one too."""
