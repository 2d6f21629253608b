"""What others wrote (a folder, a bucket, a job file, a table): the only way to open it, and to print what it says.

A name in a file becomes a path by `paths.path_below` alone; `files` opens files; `text` makes text fit to be printed.
"""
