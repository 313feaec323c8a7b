"""Running commands, moving files and reading facts, here and over SSH."""
