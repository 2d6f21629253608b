"""Is what the run read what it should have read?"""
