"""A training step beside a bare one, under every optimizer, with its layers measured, and beside those of others."""
