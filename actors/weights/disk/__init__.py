"""Versions on a shared file system, in the forms of other projects."""
