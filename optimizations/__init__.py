"""The catalog: one optimization a file."""
