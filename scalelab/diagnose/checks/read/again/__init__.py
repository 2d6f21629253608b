"""What the checks of this room measure: batches read again, order, documents."""
