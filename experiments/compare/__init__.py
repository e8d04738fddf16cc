"""One experiment trained by scan and by stock PyTorch, and the two runs compared."""
