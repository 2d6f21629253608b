"""Lines of the package that are changed on purpose, and which tests notice."""
