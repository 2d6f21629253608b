"""Is the state of the optimizer, and its number formats, sound?"""
