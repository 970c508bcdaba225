"""One process: AdamW, bucketed micro-batches, Hugging Face folders in and out."""
