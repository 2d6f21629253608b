"""Is what was logged and saved true of the run?"""
