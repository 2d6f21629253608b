"""The only way to open files that others wrote (a folder, a bucket, a job file, a table), and to print their text.

A name in a file becomes a path by `paths.path_below` alone; `files` opens files; `text` makes text fit to be printed.
"""
