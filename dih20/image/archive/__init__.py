"""An image archive as a value: list its layers, drop those the receiver has."""
