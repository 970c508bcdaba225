"""Small models on the CPU or one GPU: continuous batching with a KV cache."""
