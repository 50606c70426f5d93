"""What changed between two versions, encoded."""
