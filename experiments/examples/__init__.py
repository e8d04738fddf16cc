"""Examples to copy: one idea a file, from data to picture, beside stock PyTorch."""
