"""One command a file: parse, call the library, print. No logic lives here."""
