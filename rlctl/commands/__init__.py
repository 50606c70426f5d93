"""Commands of `rlctl`, one module each: arguments, help, action and output."""
