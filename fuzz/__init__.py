"""What searches for failures: kill -9 and power cuts under load, bytes that harm decoders, random programs, a soak."""
