"""The instances: membership, served versions, drains."""
