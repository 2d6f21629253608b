"""Runs that other programs trained: found in a file or folder, read into one record, written as run folders of ours.

`find` says which files are runs of which format, `readers/` has one file a format, `names` which column is what, `size`
what N is, `write` makes the folder with a record, and `opened` does all of it once for each state of a source.
"""
