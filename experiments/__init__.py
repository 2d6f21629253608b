"""One study a file: sweep -> fit -> figure. Each has `--quick`."""
