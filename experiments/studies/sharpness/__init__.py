"""The study of sharpness: its runs, and what they say."""
