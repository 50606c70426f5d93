"""What actors say to each other: message structs, and no behaviour."""
