"""One module a command: its arguments, its help, what it does and what it prints."""
