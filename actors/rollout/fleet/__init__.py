"""The instances: who they are, what they serve, how they leave."""
