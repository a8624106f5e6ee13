"""Commands that make and merge adapters: LoRA and control vectors."""
